"""npz: a dataset as one NumPy archive with keys x_train y_train x_test y_test, all uint8.

Archives are untrusted. Sizes, shapes and types are read from the headers and held against what the
dataset allows before any array is allocated, and pickles are never loaded.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from importlib import resources
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedpaq.problems.catalogue import DatasetSpec, spec

UInt8 = npt.NDArray[np.uint8]
HEADER_BYTES = 4096  # NumPy writes 128


class Arrays(NamedTuple):
    """Images and labels of the training and test parts."""

    x_train: UInt8  # (N, ...)
    y_train: UInt8  # (N,)
    x_test: UInt8  # (M, ...)
    y_test: UInt8  # (M,)


def locate(dataset: DatasetSpec, folder: Path) -> Path | None:
    """Return the dataset's archive in ``folder``, if there is one."""
    return next((folder / name for name in dataset.npz_names if (folder / name).is_file()), None)


def read(dataset: DatasetSpec, path: Path) -> Arrays:
    """Read the four arrays, or raise DatasetError."""
    rows = {"train": dataset.num_train, "test": dataset.num_test}
    shapes = {"x": dataset.image_shape, "y": ()}
    try:
        with zipfile.ZipFile(path) as archive:
            return Arrays(
                *(
                    _array(dataset, path, archive, key, rows[key[2:]], shapes[key[0]])
                    for key in Arrays._fields
                )
            )
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError) as error:
        raise dataset.damaged(path, f"is not a readable .npz archive ({error})") from error


def bundled() -> Arrays:
    """Return the bundled images of the digits 0 and 8 of MNIST, offline."""
    resource = resources.files("fedpaq.problems") / "bundled" / "mnist_0_8.npz"
    with resources.as_file(resource) as path:
        return read(spec("mnist"), path)


def _array(
    dataset: DatasetSpec,
    path: Path,
    archive: zipfile.ZipFile,
    key: str,
    most_rows: int,
    row_shape: tuple[int, ...],
) -> UInt8:
    entry = f"{key}.npy"
    if entry not in archive.namelist():
        raise dataset.damaged(path, f"has no array {key!r}")
    most_bytes = HEADER_BYTES + most_rows * math.prod(row_shape)
    if archive.getinfo(entry).file_size > most_bytes:
        raise dataset.damaged(path, f"holds more in {key!r} than the {most_bytes} bytes allowed")
    with archive.open(entry) as stream:
        shape, fortran_order, dtype = _header(stream)
        wanted = f"(N, {', '.join(map(str, row_shape))})" if row_shape else "(N,)"
        if fortran_order or len(shape) < 1 or shape[1:] != row_shape or not 1 <= shape[0] <= most_rows:
            raise dataset.damaged(path, f"has {key}.shape={shape}, not {wanted} with N in 1..{most_rows}")
        if dtype != np.uint8:
            raise dataset.damaged(path, f"has {key}.dtype={dtype}, not uint8")
        data = stream.read(math.prod(shape) + 1)
    if len(data) != math.prod(shape):
        raise dataset.damaged(path, f"holds {len(data)} bytes in {key!r}, not {math.prod(shape)}")
    return np.frombuffer(data, np.uint8).reshape(shape)


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, Any]:
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(stream)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(stream)
    raise ValueError(f"unknown .npy version {version}")
