"""IDX: MNIST's file format. A magic number, sizes as big-endian 32-bit integers, then the bytes.

Sizes in the header are claims: they are compared with the dataset and the real length.
"""

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np

from fedpaq.arrays import UInt8
from fedpaq.errors import DatasetError
from fedpaq.problems.datasets.catalogue import Arrays, DatasetSpec

UNSIGNED_BYTE = 0x08


def locate(dataset: DatasetSpec, folder: Path) -> Path | None:
    """Return the named folder, in ``folder`` or itself, with the files; raise if it lacks some."""
    inside = [folder / name for name in dataset.folders]
    itself = [folder for name in dataset.folders if folder.parts[-len(Path(name).parts) :] == Path(name).parts]
    for candidate in inside + itself:
        there = [_path(candidate, file.name) is not None for file in dataset.files]
        if all(there):
            return candidate
        if any(there):
            missing = [file.name for file, found in zip(dataset.files, there, strict=True) if not found]
            raise DatasetError(
                f"folder={str(candidate)!r} holds only some of {dataset.name}'s files; "
                f"fetch {', '.join(missing)} from {dataset.address} and put them there too"
            )
    return None


def read(dataset: DatasetSpec, folder: Path) -> Arrays:
    """Read the four files, gzipped or not, or raise DatasetError."""
    train, test = dataset.num_train, dataset.num_test
    shapes = ((train, *dataset.image_shape), (train,), (test, *dataset.image_shape), (test,))
    return Arrays(
        *(_array(dataset, folder, file.name, shape) for file, shape in zip(dataset.files, shapes, strict=True))
    )


def _array(dataset: DatasetSpec, folder: Path, name: str, shape: tuple[int, ...]) -> UInt8:
    path = _path(folder, name)
    if path is None:
        raise dataset.damaged(folder / name, "is missing")
    header_bytes = 4 + 4 * len(shape)
    data = _content(dataset, path, header_bytes + math.prod(shape))
    if len(data) < header_bytes or data[:4] != bytes([0, 0, UNSIGNED_BYTE, len(shape)]):
        raise dataset.damaged(path, f"is not an IDX file of {len(shape)}-dimensional bytes")
    claimed = struct.unpack(f">{len(shape)}I", data[4:header_bytes])
    if claimed != shape:
        raise dataset.damaged(path, f"claims shape {claimed}, not {shape}")
    if len(data) != header_bytes + math.prod(shape):
        raise dataset.damaged(path, f"is {len(data)} bytes long, not {header_bytes + math.prod(shape)}")
    return np.frombuffer(data, np.uint8, offset=header_bytes).reshape(shape)


def _content(dataset: DatasetSpec, path: Path, num_bytes: int) -> bytes:
    """Return at most one byte more than wanted, however much the file unpacks to."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            return stream.read(num_bytes + 1)
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise dataset.damaged(path, f"is not a readable gzip file ({error})") from error


def _path(folder: Path, name: str) -> Path | None:
    """Return the file as published (gzipped) or unpacked, whichever is there."""
    options = (folder / name, folder / name.removesuffix(".gz"))
    return next((path for path in options if path.is_file()), None)
