"""npz: a dataset as one NumPy archive with keys x_train y_train x_test y_test, all uint8.

Archives are untrusted. Shapes and types are read from the headers and compared with what the dataset
allows before any array is unpacked, and no more is unpacked than that. Pickles are never loaded.
"""

import math
import zipfile
import zlib
from importlib import resources
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedpaq.arrays import UInt8
from fedpaq.problems.datasets.catalogue import Arrays, DatasetSpec, spec

HEADER_BYTES = 512  # NumPy writes 128


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
                *(_array(dataset, path, archive, key, rows[key[2:]], shapes[key[0]]) for key in Arrays._fields)
            )
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError, RuntimeError) as error:
        raise dataset.damaged(path, f"is not a readable .npz archive ({error})") from error


def bundled() -> Arrays:
    """Return the bundled images of the digits 0 and 8 of MNIST, offline."""
    resource = resources.files("fedpaq.problems.datasets") / "bundled" / "mnist_0_8.npz"
    with resources.as_file(resource) as path:
        return read(spec("mnist"), path)


def _array(
    dataset: DatasetSpec, path: Path, archive: zipfile.ZipFile, key: str, most_rows: int, row_shape: tuple[int, ...]
) -> UInt8:
    if f"{key}.npy" not in archive.namelist():
        raise dataset.damaged(path, f"has no array {key!r}")
    entry = archive.getinfo(f"{key}.npy")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"compression method {entry.compress_type} is not one NumPy writes")
    with archive.open(entry) as stream:
        shape, is_fortran, dtype = _header(stream)
        if is_fortran or not shape or shape[1:] != row_shape or not 1 <= shape[0] <= most_rows:
            wanted = ", ".join(["N", *map(str, row_shape)])
            raise dataset.damaged(path, f"has {key}.shape={shape}, not ({wanted}) with N in 1..{most_rows}")
        if dtype != np.uint8:
            raise dataset.damaged(path, f"has {key}.dtype={dtype.str!r}, not uint8 ('|u1')")
        data = stream.read(math.prod(shape) + 1)
    if len(data) != math.prod(shape):
        raise dataset.damaged(path, f"holds {len(data)} bytes or more in {key!r}, not {math.prod(shape)}")
    return np.frombuffer(data, np.uint8).reshape(shape)


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return an array's shape, whether its columns come first, and its type.

    Version 1.0 alone: NumPy writes it for every plain array, and reads the others' headers, up to
    4 GiB of them, before it looks at their size.
    """
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError("an array's header is not that of a plain array")
    try:
        return np.lib.format.read_array_header_1_0(stream, max_header_size=HEADER_BYTES)
    except Exception as error:  # SyntaxError, TypeError, ...: whatever Python's own parsers raise
        raise ValueError(f"an array's header cannot be read: {str(error)[:100]}") from error
