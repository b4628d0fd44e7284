"""Datasets: find one, read it, check it.

Looked for in this order: the data folder the caller names (``.npz``, else the official files), the
folder of the Linux distribution, the cache; what is nowhere is downloaded into the cache. A file
that is found but damaged is an error, never skipped.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from fedpaq.errors import DatasetError
from fedpaq.problems.datasets import cifar_binary, idx, npz
from fedpaq.problems.datasets.catalogue import Arrays, DatasetSpec, spec
from fedpaq.problems.datasets.download import default_cache, download, is_intact

Place = Literal["data folder", "system", "cache"]


class Format(Protocol):
    """A module that knows one way in which datasets are stored."""

    def locate(self, dataset: DatasetSpec, folder: Path) -> Path | None:
        """Return where the dataset is under ``folder``, if it is there in this format."""

    def read(self, dataset: DatasetSpec, path: Path) -> Arrays:
        """Read what ``locate`` found, or raise DatasetError."""


FORMATS: dict[str, Format] = {"npz": npz, "idx": idx, "cifar-binary": cifar_binary}


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


def locate(dataset: DatasetSpec, *, data_dir: Path | None, cache_dir: Path) -> Source | None:
    """Return the first place that has the dataset, without reading it; None if no place has."""
    require_folder(data_dir)
    if data_dir is not None:
        for format in ("npz", dataset.format):
            path = FORMATS[format].locate(dataset, data_dir)
            if path is not None:
                return Source("data folder", format, path)
    if dataset.system_folder is not None:
        path = FORMATS[dataset.format].locate(dataset, Path(dataset.system_folder))
        if path is not None:
            return Source("system", dataset.format, path)
    folder = cache_dir / dataset.name
    if all((folder / file.name).is_file() for file in dataset.files):
        path = folder if len(dataset.files) > 1 else folder / dataset.files[0].name
        return Source("cache", dataset.format, path)
    return None


def require_folder(data_dir: Path | None) -> None:
    """Raise DatasetError unless ``data_dir``, if given, is a folder: a mistyped one is not skipped."""
    if data_dir is not None and not data_dir.is_dir():
        raise DatasetError(f"data_dir={str(data_dir)!r} is not a folder; choose one that exists")


def read(dataset: DatasetSpec, source: Source) -> Dataset:
    """Read and check what ``locate`` found."""
    try:
        arrays = FORMATS[source.format].read(dataset, source.path)
    except DatasetError:
        raise
    except OSError as error:
        raise dataset.damaged(source.path, f"cannot be read ({error})") from error
    for part, images, labels in (("train", arrays.x_train, arrays.y_train), ("test", arrays.x_test, arrays.y_test)):
        if len(images) != len(labels):
            raise dataset.damaged(source.path, f"has {len(images)} {part} images but {len(labels)} labels")
        if labels.max() >= dataset.num_labels:
            raise dataset.damaged(
                source.path, f"has {part} label {labels.max()}, outside {dataset.name}'s 0..{dataset.num_labels - 1}"
            )
    return Dataset(dataset, source, arrays)


def load_dataset(
    dataset: str | DatasetSpec,
    *,
    data_dir: str | Path | None = None,
    cache_dir: str | Path | None = None,
    may_download: bool = True,
) -> Dataset:
    """Find a dataset, downloading it if need be (a damaged cache, too), and read it."""
    dataset = spec(dataset) if isinstance(dataset, str) else dataset
    cache = default_cache() if cache_dir is None else Path(cache_dir)
    folder = None if data_dir is None else Path(data_dir).expanduser()
    source = locate(dataset, data_dir=folder, cache_dir=cache)
    if source is None or (source.place == "cache" and not cache_is_intact(dataset, cache)):
        if not may_download:
            raise DatasetError(f"dataset={dataset.name!r} was not found intact; {dataset.advice()}")
        download(dataset, cache / dataset.name)
        source = locate(dataset, data_dir=None, cache_dir=cache)
    if source is None:
        raise DatasetError(f"folder={str(cache)!r} lost files while {dataset.name} was downloaded; try again")
    return read(dataset, source)


def cache_is_intact(dataset: DatasetSpec, cache_dir: Path) -> bool:
    """Tell whether every cached file has its published checksum."""
    return all(is_intact(file, cache_dir / dataset.name) for file in dataset.files)
