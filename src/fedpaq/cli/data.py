"""``fedpaq data``: list the datasets, say where they are, fetch and check them.

``fedpaq.problems`` is imported inside the commands: it brings torch, which ``--help`` can do without.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedpaq.cli.options import AsJson, DataDir
from fedpaq.cli.printing import line, show, table
from fedpaq.cli.units import format_bytes
from fedpaq.errors import DatasetError

if TYPE_CHECKING:
    from fedpaq.problems.datasets.catalogue import DatasetSpec
    from fedpaq.problems.datasets.source import Source

app = typer.Typer(
    help="Find, fetch and check the datasets of the named problems. mnist-logistic needs none of them: "
    "its images come with the package."
    "\n\nExample: fedpaq data list",
    no_args_is_help=True,
)


@app.command("list")
def list_datasets(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List datasets and where they are, and the problems that use them.

    Example: fedpaq data list --json
    """
    from fedpaq.problems.datasets.catalogue import DATASETS
    from fedpaq.problems.named import PROBLEMS

    datasets = [find(dataset, data_dir) for dataset in DATASETS.values()]
    problems = [{"name": name, "dataset": named.dataset, "summary": named.summary} for name, named in PROBLEMS.items()]

    def tables() -> Iterator[Any]:
        rows = [[row["name"], format_bytes(row["download_bytes"]), row["licence"], where(row)] for row in datasets]
        yield table(["dataset", ">download", "licence", "found"], rows)
        yield from _folders(data_dir)
        rows = [[row["name"], row["dataset"] or "none needed", row["summary"]] for row in problems]
        yield table(["problem", "dataset", "what it is"], rows)

    show({"datasets": datasets, "problems": problems}, as_json, tables)


@app.command()
def get(
    names: Annotated[list[str], typer.Argument(metavar="DATASET")], data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """Download datasets from their official addresses, verified by SHA-256.

    They go to the folder that --data-dir or FEDPAQ_DATA names, else to the cache. Files that are
    there and intact are not fetched again.

    Example: fedpaq data get mnist cifar10
    """
    from fedpaq.problems.datasets.catalogue import spec
    from fedpaq.problems.datasets.download import default_cache, download

    rows = []
    for dataset in [spec(name) for name in names]:
        folder = download(dataset, (data_dir or default_cache()) / dataset.name)
        rows.append({"name": dataset.name, "folder": str(folder), "bytes": dataset.num_bytes})
    verified = ([row["name"], row["folder"]] for row in rows)
    show(rows, as_json, lambda: [table(["dataset", "verified in"], verified)])


@app.command()
def check(
    names: Annotated[list[str] | None, typer.Argument(metavar="DATASET")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Read datasets in full and verify formats, shapes, labels and, where published, checksums.

    Without a DATASET all of them are checked. Exits with code 1 if a dataset is damaged, or was
    named but not found.

    Example: fedpaq data check mnist --data-dir DIR
    """
    from fedpaq.problems.datasets.catalogue import DATASETS, spec

    rows = [_checked(dataset, data_dir) for dataset in [spec(name) for name in names or DATASETS]]
    bad = [row for row in rows if row["status"] == "damaged" or (names and row["status"] == "not found")]
    headings = ("dataset", "status", ">train", ">test", "checksum", "found")
    keys = ("name", "status", "train", "test", "checksum")
    cells = ([*(row[key] for key in keys), where(row)] for row in rows)
    show(rows, as_json, lambda: [table(headings, cells), *_folders(data_dir)])
    for row in bad if not as_json else ():
        typer.echo(f"{row['name']}: {row['error']}", err=True)
    if bad:
        raise typer.Exit(1)


def find(dataset: DatasetSpec, data_dir: Path | None) -> dict[str, Any]:
    """Return what a dataset is and where it is, as plain values."""
    from fedpaq.problems.datasets.download import default_cache
    from fedpaq.problems.datasets.source import locate, require_folder

    require_folder(data_dir)
    try:
        place = _place(locate(dataset, data_dir=data_dir, cache_dir=default_cache()))
    except DatasetError:  # some files are missing; `check` says which
        place = {"place": "incomplete", "format": dataset.format, "path": None}
    return {
        "name": dataset.name,
        "image_shape": list(dataset.image_shape),
        "num_labels": dataset.num_labels,
        "download_bytes": dataset.num_bytes,
        "licence": dataset.licence,
        "address": dataset.address,
        **place,
    }


def _checked(dataset: DatasetSpec, data_dir: Path | None) -> dict[str, Any]:
    from fedpaq.problems.datasets.download import default_cache
    from fedpaq.problems.datasets.source import cache_is_intact, locate, read, require_folder

    require_folder(data_dir)
    row: dict[str, Any] = {"name": dataset.name, "status": "not found", **_place(None)}
    row |= {"train": None, "test": None, "checksum": None, "error": None}
    try:
        source = locate(dataset, data_dir=data_dir, cache_dir=default_cache())
        if source is None:
            return row | {"error": f"not found; {dataset.advice()}"}
        row |= _place(source) | {"status": "damaged", "checksum": _checksum(dataset, source)}
        if source.place == "cache" and not cache_is_intact(dataset, default_cache()):
            raise dataset.damaged(source.path, "does not have the published checksum")
        arrays = read(dataset, source).arrays
    except DatasetError as error:
        return row | {"status": "damaged", "error": str(error)}
    return row | {"status": "ok", "train": len(arrays.x_train), "test": len(arrays.x_test)}


def _checksum(dataset: DatasetSpec, source: Source) -> str | None:
    """Say whether the files are the published ones, byte for byte; None where that cannot be known."""
    from fedpaq.problems.datasets.download import is_intact

    folder = source.path if source.path.is_dir() else source.path.parent
    if source.format == "npz" or not all((folder / file.name).is_file() for file in dataset.files):
        return None
    return "published" if all(is_intact(file, folder) for file in dataset.files) else "other"


def _place(source: Source | None) -> dict[str, str | None]:
    if source is None:
        return {"place": None, "format": None, "path": None}
    return {"place": source.place, "format": source.format, "path": str(source.path)}


def where(row: dict[str, Any]) -> str:
    """Say where a dataset was found."""
    if row["path"] is None:
        return row["place"] or "not found"
    return f"{row['place']}: {Path(row['path']).name}"


def _folders(data_dir: Path | None) -> Iterator[Any]:
    from fedpaq.problems.datasets.download import default_cache

    yield line(f"data folder: {data_dir or 'none (name one with --data-dir or FEDPAQ_DATA)'}")
    yield line(f"cache: {default_cache()}")
