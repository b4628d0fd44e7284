"""Datasets: find one, read it, check it.

Looked for in this order: the data folder the caller names (``.npz``, else the official files), the
folder of the Linux distribution, the cache; what is nowhere is downloaded into the cache. A file
that is found but damaged is an error, never skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedpaq.errors import DatasetError
from fedpaq.problems import cifar_binary, idx, npz
from fedpaq.problems.catalogue import DatasetSpec, spec
from fedpaq.problems.download import default_cache, download, is_intact
from fedpaq.problems.npz import Arrays

Place = Literal["data folder", "system", "cache"]
READERS: dict[str, Callable[[DatasetSpec, Path], Arrays]] = {
    "npz": npz.read,
    "idx": idx.read,
    "cifar-binary": cifar_binary.read,
}


@dataclass(frozen=True)
class Source:
    """Where a dataset was found, and in which format."""

    place: Place
    format: str
    path: Path


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images and labels as uint8, and where they came from."""

    spec: DatasetSpec
    source: Source
    arrays: Arrays


def locate(
    dataset: DatasetSpec, *, data_dir: Path | None = None, cache_dir: Path | None = None
) -> Source | None:
    """Return the first place that has the dataset, without reading it; None if no place has."""
    if data_dir is not None:
        if not data_dir.is_dir():
            raise DatasetError(f"data_dir={str(data_dir)!r} is not a folder; choose one that exists")
        found = _in_folder(dataset, data_dir)
        if found is not None:
            return Source("data folder", *found)
    if dataset.system_folder is not None and Path(dataset.system_folder).is_dir():
        return Source("system", dataset.format, Path(dataset.system_folder))
    folder = (cache_dir or default_cache()) / dataset.name
    if all((folder / file.name).is_file() for file in dataset.files):
        return Source("cache", dataset.format, _official(dataset, folder))
    return None


def read(dataset: DatasetSpec, source: Source) -> Dataset:
    """Read and check what ``locate`` found."""
    if source.place == "cache":
        _require_intact(dataset, source)
    try:
        arrays = READERS[source.format](dataset, source.path)
    except DatasetError:
        raise
    except OSError as error:
        raise dataset.damaged(source.path, f"cannot be read ({error})") from error
    for part, images, labels in (
        ("train", arrays.x_train, arrays.y_train),
        ("test", arrays.x_test, arrays.y_test),
    ):
        if len(images) != len(labels):
            raise dataset.damaged(source.path, f"has {len(images)} {part} images but {len(labels)} labels")
        if labels.max() >= dataset.num_labels:
            raise dataset.damaged(
                source.path,
                f"has {part} label {labels.max()}, outside {dataset.name}'s 0..{dataset.num_labels - 1}",
            )
    return Dataset(dataset, source, arrays)


def load_dataset(
    name: str,
    *,
    data_dir: str | Path | None = None,
    cache_dir: str | Path | None = None,
    may_download: bool = True,
) -> Dataset:
    """Find the dataset called ``name``, downloading it if need be, and read it."""
    dataset = spec(name)
    cache = Path(cache_dir) if cache_dir is not None else default_cache()
    folder = Path(data_dir) if data_dir is not None else None
    source = locate(dataset, data_dir=folder, cache_dir=cache)
    if source is None:
        if not may_download:
            raise DatasetError(f"dataset={name!r} was not found; {dataset.advice()}")
        download(dataset, cache / name)
        source = Source("cache", dataset.format, _official(dataset, cache / name))
    return read(dataset, source)


def _in_folder(dataset: DatasetSpec, folder: Path) -> tuple[str, Path] | None:
    archive = npz.locate(dataset, folder)
    if archive is not None:
        return "npz", archive
    files = (idx if dataset.format == "idx" else cifar_binary).locate(dataset, folder)
    return (dataset.format, files) if files is not None else None


def _official(dataset: DatasetSpec, folder: Path) -> Path:
    """Return what the format's reader takes: the folder of several files, or the one archive."""
    return folder if dataset.format == "idx" else folder / dataset.files[0].name


def _require_intact(dataset: DatasetSpec, source: Source) -> None:
    folder = source.path if dataset.format == "idx" else source.path.parent
    for file in dataset.files:
        if not is_intact(file, folder):
            raise dataset.damaged(folder / file.name, "does not have the published checksum")
