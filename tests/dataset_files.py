"""Files of small datasets, in every format, for the tests that read or serve them."""

from __future__ import annotations

import dataclasses
import gzip
import io
import os
import struct
import tarfile
from pathlib import Path

import numpy as np

from fedpaq.problems.datasets import cifar_binary
from fedpaq.problems.datasets.catalogue import Arrays, DatasetSpec, spec
from fedpaq.problems.datasets.source import load_dataset
from repository import DATA

TRAIN, TEST = 20, 10


def small(name: str) -> DatasetSpec:
    """The dataset with few samples, as its files below hold."""
    return dataclasses.replace(spec(name), num_train=TRAIN, num_test=TEST, system_folder=None)


def arrays_for(dataset: DatasetSpec) -> Arrays:
    generator = np.random.default_rng(0)
    parts = []
    for count in (dataset.num_train, dataset.num_test):
        parts.append(generator.integers(0, 256, (count, *dataset.image_shape)).astype(np.uint8))
        parts.append(generator.integers(0, dataset.num_labels, count).astype(np.uint8))
    return Arrays(*parts)


def idx_bytes(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_idx(dataset: DatasetSpec, arrays: Arrays, folder: Path, *, zipped: bool = True) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for file, array in zip(dataset.files, arrays, strict=True):
        content = idx_bytes(array)
        if zipped:
            (folder / file.name).write_bytes(gzip.compress(content, mtime=0))
        else:
            (folder / file.name.removesuffix(".gz")).write_bytes(content)


def cifar_records(images: np.ndarray, labels: np.ndarray, label_bytes: int) -> bytes:
    planes = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    leading = np.full((len(labels), label_bytes - 1), 7, np.uint8)  # coarse labels, ignored
    return np.concatenate([leading, labels[:, None], planes], axis=1).tobytes()


def cifar_members(dataset: DatasetSpec, arrays: Arrays) -> dict[str, bytes]:
    layout = cifar_binary.LAYOUTS[dataset.name]
    train = cifar_records(arrays.x_train, arrays.y_train, layout.label_bytes)
    size = len(train) // len(layout.train)
    members = {name: train[i * size : (i + 1) * size] for i, name in enumerate(layout.train)}
    return {**members, layout.test: cifar_records(arrays.x_test, arrays.y_test, layout.label_bytes)}


def tar_gz(entries: list[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for entry, content in entries:
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def entry(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size = size
    return info


def cifar_archive(dataset: DatasetSpec, members: dict[str, bytes]) -> bytes:
    folder = cifar_binary.LAYOUTS[dataset.name].folder
    return tar_gz([(entry(f"{folder}/{name}", len(content)), content) for name, content in members.items()])


def assert_same(found: Arrays, expected: Arrays) -> None:
    for left, right in zip(found, expected, strict=True):
        assert left.dtype == np.uint8 and np.array_equal(left, right)


def load_offline(dataset: DatasetSpec, folder: Path | None, cache: Path) -> Arrays:
    return load_dataset(dataset, data_dir=folder, cache_dir=cache, may_download=False).arrays


def shared_data() -> Path | None:
    named = os.environ.get("FEDPAQ_DATA")
    folder = Path(named) if named else DATA
    return folder if folder.is_dir() else None
