"""Progress on standard error: a live bar in a terminal, silence where output is piped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn


@contextmanager
def progress_bar(what: str, total: float | None = None, *, quiet: bool = False) -> Iterator[Callable[..., None]]:
    """Yield the function that moves the bar: ``update(completed=, advance=, description=, detail=)``."""
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[detail]}"),
        console=console,
        transient=True,
        speed_estimate_period=300,  # steps differ in cost: a short memory would make the estimate jump
        disable=quiet or not console.is_terminal,
    ) as bar:
        yield partial(bar.update, bar.add_task(what, total=total, detail=""))
