"""Progress on standard error: a live bar in a terminal, silence where output is piped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def progress_bar(quiet: bool = False) -> Iterator[Progress]:
    """Yield a progress display with counts, time left and a ``note`` field for the loss."""
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
        transient=True,
        disable=quiet or not console.is_terminal,
    ) as bar:
        yield bar
