"""CIFAR binary: records of one or two label bytes and 3072 pixel bytes, planes red, green, blue.

CIFAR-100 has two labels per record, coarse then fine; the fine one is used. Archives are read in
memory, expected members only, so nothing is ever extracted and no member's path is followed.
"""

import gzip
import io
import tarfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedpaq.arrays import UInt8
from fedpaq.problems.datasets.catalogue import Arrays, DatasetSpec

PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class Layout:
    """Which members make up a dataset, and how many label bytes lead a record."""

    folder: str
    train: tuple[str, ...]
    test: str
    label_bytes: int


LAYOUTS = {
    "cifar10": Layout("cifar-10-batches-bin", tuple(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin", 1),
    "cifar100": Layout("cifar-100-binary", ("train.bin",), "test.bin", 2),
}


def locate(dataset: DatasetSpec, folder: Path) -> Path | None:
    """Return the unpacked folder or the archive under ``folder``, if there is one."""
    for name in dataset.folders:
        for candidate in (folder / name / LAYOUTS[dataset.name].folder, folder / name / dataset.files[0].name):
            if candidate.exists():
                return candidate
    return None


def read(dataset: DatasetSpec, path: Path) -> Arrays:
    """Read the training and test records from an unpacked folder or the archive."""
    layout = LAYOUTS[dataset.name]
    sizes = _sizes(dataset)
    members = _from_folder(dataset, path, sizes) if path.is_dir() else _from_archive(dataset, path, sizes)
    x_train, y_train = _records(b"".join(members[name] for name in layout.train), layout.label_bytes)
    x_test, y_test = _records(members[layout.test], layout.label_bytes)
    return Arrays(x_train, y_train, x_test, y_test)


def _sizes(dataset: DatasetSpec) -> dict[str, int]:
    """Return the exact bytes of each expected member."""
    layout = LAYOUTS[dataset.name]
    record = layout.label_bytes + PIXELS
    sizes = {name: dataset.num_train // len(layout.train) * record for name in layout.train}
    return {**sizes, layout.test: dataset.num_test * record}


def _from_folder(dataset: DatasetSpec, folder: Path, sizes: Mapping[str, int]) -> dict[str, bytes]:
    members = {}
    for name, size in sizes.items():
        path = folder / name
        if not path.is_file():
            raise dataset.damaged(path, "is missing")
        if path.stat().st_size != size:
            raise dataset.damaged(path, f"is {path.stat().st_size} bytes long, not {size}")
        members[name] = path.read_bytes()
    return members


def _from_archive(dataset: DatasetSpec, path: Path, sizes: Mapping[str, int]) -> dict[str, bytes]:
    folder = LAYOUTS[dataset.name].folder
    wanted = {f"{folder}/{name}": name for name in sizes}
    members = {}
    try:
        with gzip.open(path) as unpacked:
            stream = _Limited(unpacked, sum(sizes.values()) + 2**20)
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                for member in archive:
                    name = wanted.get(member.name)
                    content = archive.extractfile(member) if name and member.isreg() else None
                    if name is None or content is None:
                        continue
                    if member.size != sizes[name]:
                        raise dataset.damaged(path, f"holds {name} of {member.size} bytes, not {sizes[name]}")
                    members[name] = content.read()
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, ValueError) as error:
        raise dataset.damaged(path, f"is not a readable .tar.gz archive ({error})") from error
    for name in sizes:
        if len(members.get(name, b"")) != sizes[name]:
            raise dataset.damaged(path, f"lacks {folder}/{name}")
    return members


class _Limited(io.RawIOBase):
    """A stream that refuses to deliver more than ``limit`` bytes: no archive unpacks without end."""

    def __init__(self, stream: gzip.GzipFile, limit: int) -> None:
        self._stream, self._left = stream, limit

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(min(size, self._left + 1) if size >= 0 else self._left + 1)
        self._left -= len(data)
        if self._left < 0:
            raise ValueError("it unpacks to more bytes than the dataset has")
        return data


def _records(data: bytes, label_bytes: int) -> tuple[UInt8, UInt8]:
    records = np.frombuffer(data, np.uint8).reshape(-1, label_bytes + PIXELS)
    planes = records[:, label_bytes:].reshape(-1, 3, 32, 32)
    images = np.ascontiguousarray(planes.transpose(0, 2, 3, 1))  # (N, 32, 32, 3)
    return images, records[:, label_bytes - 1].copy()
