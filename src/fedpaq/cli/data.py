"""``fedpaq data``: which datasets there are, where they are found, fetching and checking them.

``fedpaq.problems`` is imported inside the commands: it brings torch, which ``--help`` can do without.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedpaq.cli.options import AsJson, DataDir
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
Names = Annotated[list[str] | None, typer.Argument(metavar="DATASET", help="Default: all of them.")]


@app.command("list")
def list_datasets(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List datasets and where they are, and the problems that use them.

    Example: fedpaq data list --json
    """
    from fedpaq.problems.datasets.catalogue import DATASETS
    from fedpaq.problems.datasets.source import require_folder
    from fedpaq.problems.named import PROBLEMS

    if data_dir is not None:
        require_folder(data_dir)
    datasets = [_found(dataset, data_dir) for dataset in DATASETS.values()]
    problems = [
        {"name": name, "dataset": named.dataset, "summary": named.summary} for name, named in PROBLEMS.items()
    ]
    if as_json:
        typer.echo(json.dumps({"datasets": datasets, "problems": problems}, indent=2))
        return
    _print_table(
        ["dataset", "download", "licence", "found"],
        [
            [row["name"], f"{row['download_bytes'] / 1e6:.0f} MB", row["licence"], _where(row)]
            for row in datasets
        ],
    )
    _print_folders(data_dir)
    _print_table(
        ["problem", "dataset", "what it is"],
        [[row["name"], row["dataset"] or "none needed", row["summary"]] for row in problems],
    )


@app.command()
def get(
    names: Annotated[list[str], typer.Argument(metavar="DATASET", help="Which datasets.")],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Download datasets from their official addresses, verified by SHA-256.

    They go to the folder --data-dir or FEDPAQ_DATA names, else to the cache. What is there and
    intact is not fetched again.

    Example: fedpaq data get mnist cifar10
    """
    from fedpaq.problems.datasets.catalogue import spec
    from fedpaq.problems.datasets.download import default_cache, download

    rows = []
    for dataset in [spec(name) for name in names]:
        folder = download(dataset, (data_dir or default_cache()) / dataset.name)
        rows.append({"name": dataset.name, "folder": str(folder), "bytes": dataset.num_bytes})
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    _print_table(["dataset", "verified in"], [[row["name"], row["folder"]] for row in rows])


@app.command()
def check(names: Names = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Read datasets in full and verify formats, shapes, labels and, where published, checksums.

    Exits with 1 if one is damaged, or was named but not found.

    Example: fedpaq data check mnist --data-dir DIR
    """
    from fedpaq.problems.datasets.catalogue import DATASETS, spec
    from fedpaq.problems.datasets.source import require_folder

    if data_dir is not None:
        require_folder(data_dir)
    rows = [_checked(dataset, data_dir) for dataset in [spec(name) for name in names or DATASETS]]
    bad = [row for row in rows if row["status"] == "damaged" or (names and row["status"] == "not found")]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    else:
        _print_table(
            ["dataset", "status", "train", "test", "checksum", "found"],
            [
                [row["name"], row["status"], row["train"], row["test"], row["checksum"], _where(row)]
                for row in rows
            ],
        )
        _print_folders(data_dir)
        for row in bad:
            typer.echo(f"{row['name']}: {row['error']}", err=True)
    if bad:
        raise typer.Exit(1)


def _found(dataset: DatasetSpec, data_dir: Path | None) -> dict[str, Any]:
    from fedpaq.problems.datasets.download import default_cache
    from fedpaq.problems.datasets.source import locate

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
    from fedpaq.problems.datasets.source import cache_is_intact, locate, read

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
    """Say whether the files are those published, byte for byte; None where that cannot be known."""
    from fedpaq.problems.datasets.download import is_intact

    folder = source.path if source.path.is_dir() else source.path.parent
    if source.format == "npz" or not all((folder / file.name).is_file() for file in dataset.files):
        return None
    return "published" if all(is_intact(file, folder) for file in dataset.files) else "other"


def _place(source: Source | None) -> dict[str, str | None]:
    if source is None:
        return {"place": None, "format": None, "path": None}
    return {"place": source.place, "format": source.format, "path": str(source.path)}


def _where(row: dict[str, Any]) -> str:
    if row["path"] is None:
        return row["place"] or "not found"
    return f"{row['place']}: {Path(row['path']).name}"


def _print_folders(data_dir: Path | None) -> None:
    from fedpaq.problems.datasets.download import default_cache

    typer.echo(f"data folder: {data_dir or 'none (name one with --data-dir or FEDPAQ_DATA)'}")
    typer.echo(f"cache: {default_cache()}\n")


def _print_table(columns: list[str], rows: list[list[Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for column in table.columns:
        column.overflow = "fold"
    for row in rows:
        table.add_row(*("-" if value is None else str(value) for value in row))
    Console().print(table)
