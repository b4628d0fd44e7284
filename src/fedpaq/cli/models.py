"""``fedpaq reproduce models``: the study of models, with a bar, and its tables."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fedpaq.cli.printing import progress_bar, table

if TYPE_CHECKING:
    from fedpaq.experiments import Output

COLOURS = {"holds": "green", "does not hold": "red", "tie": "yellow", "undecided": "yellow"}  # of verdicts


def run_models(folder: Output, data_dir: Path | None, minutes: float | None, quiet: bool) -> bool:
    """Run what is missing of the study, at most so many minutes; return whether all is done."""
    from fedpaq.experiments.models import TASKS, run_study, work

    tasks = list(TASKS.values())
    done, total = work(tasks, folder.trials)
    if done < total and folder.device == "cpu" and not quiet:
        typer.echo("fedpaq: models are made for a GPU; on a CPU they take days (--device cuda)", err=True)
    with progress_bar("models", total, quiet=quiet) as update:
        update(completed=done)

        def shown(what: str, done: int, total: int) -> None:
            update(description=what, completed=done, total=total)
            if not quiet and not sys.stderr.isatty():
                print(f"{what}  {done:,} of about {total:,} rounds", file=sys.stderr)

        return run_study(
            tasks, folder.trials, device=folder.device, data_dir=data_dir,
            seconds=None if minutes is None else 60 * minutes, progress=shown,
        )  # fmt: skip


def model_tables(studies: Sequence[Mapping[str, Any]]) -> Iterator[Any]:
    """Yield a table of each study, and its verdicts."""
    for study in studies:
        headings = (
            "arm", ">step size", ">bytes per upload", ">times fewer", ">both ways", f">{study['measure']}",
            f">behind float32 ({study['unit']})", ">training loss",
        )  # fmt: skip
        rows = [
            (
                row["arm"], f"{row['step_size']:g}", f"{row['bytes_per_upload']:,}", f"{row['times_fewer_up']:,.0f}",
                f"{row['times_fewer_both_ways']:,.3g}", _number(row["measure"]), _interval(row["behind_float32"]),
                _number(row["training_loss"]),
            )
            for row in study["rows"]
        ]  # fmt: skip
        yield table(headings, rows, title=study["title"])
        for entry in study["verdicts"]:
            yield f"[{COLOURS[entry['verdict']]}]{entry['verdict']}[/]  {entry['sentence']}"


def _number(value: float | None) -> str:
    return "diverged" if value is None else f"{value:.4g}"


def _interval(values: Mapping[str, float] | None) -> str:
    return "diverged" if values is None else f"{values['mean']:.2g} \\[{values['low']:.2g}, {values['high']:.2g}]"
