"""Printing: what a verb has found, as JSON or as tables, and how far it is. All tables look alike."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import typer
from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text


def show(values: Any, as_json: bool, parts: Callable[[], Iterable[Any]]) -> None:
    """Print ``values`` as strict JSON, or else the tables and sentences that ``parts()`` yields."""
    if as_json:
        typer.echo(json.dumps(values, indent=1, allow_nan=False))
        return
    console = Console()
    for number, part in enumerate(parts()):
        if number and isinstance(part, Table):
            console.print()
        console.print(part, soft_wrap=isinstance(part, Text))


def table(headings: Iterable[str], rows: Iterable[Iterable[Any]] = (), *, title: str = "") -> Table:
    """Return a table. A heading that starts with ">" is a column of numbers, aligned to the right."""
    made = Table(
        title=title or None,
        min_width=len(title),  # a title is not broken to the width of its table
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for heading in headings:
        justify: Any = "right" if heading.startswith(">") else "left"
        made.add_column(heading.removeprefix(">"), justify=justify, overflow="fold")
    made.show_header = any(column.header for column in made.columns)
    for row in rows:
        made.add_row(*("-" if cell is None else str(cell) for cell in row))
    return made


def grouped(headings: Iterable[str], rows: Iterable[Sequence[Any]], *, title: str = "") -> Table:
    """Return a table whose first column names a group, once for all of its rows."""
    made, previous = table(headings, title=title), None
    for group, *cells in rows:
        if previous not in (None, group):
            made.add_section()
        made.add_row("" if group == previous else group, *map(str, cells))
        previous = group
    return made


def line(text: str) -> Text:
    """Return a line that is never broken, so that a path in it can be copied."""
    return Text(text)


@contextmanager
def at_work(what: str, *, quiet: bool = False) -> Iterator[None]:
    """Show what is being done, and for how long, where nobody can tell how much is left."""
    with _progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), quiet=quiet) as shown:
        shown.add_task(what, total=None)
        yield


@contextmanager
def progress_bar(what: str, total: float | None = None, *, quiet: bool = False) -> Iterator[Callable[..., None]]:
    """Yield the function that moves a bar: ``update(completed=, advance=, description=, detail=)``."""
    with _progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[detail]}"),
        quiet=quiet,
        speed_estimate_period=300,  # steps differ in cost: a short memory would make the estimate jump
    ) as bar:
        yield partial(bar.update, bar.add_task(what, total=total, detail=""))


def _progress(*columns: ProgressColumn, quiet: bool, **settings: Any) -> Progress:
    """Return a display on standard error, live in a terminal; where output is piped there is silence."""
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal, **settings)
