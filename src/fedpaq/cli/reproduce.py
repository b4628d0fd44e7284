"""``fedpaq reproduce``: the paper's figures, run and judged."""

from __future__ import annotations

import json as json_module
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedpaq.cli.options import AsJson, DataDir
from fedpaq.errors import DatasetError

if TYPE_CHECKING:
    from fedpaq.experiments import Figure, Output, RoundSetting

COLOURS = {"holds": "green", "does not hold": "red", "undecided": "yellow"}


def reproduce(
    figures: Annotated[
        list[str] | None,
        typer.Argument(help="mnist, cifar10-92k, cifar10-248k, cifar100, fashion, or all; default: mnist."),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for curves, plots and report; resumed if it exists.")
    ] = Path("reproduction"),
    data_dir: DataDir = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the verdicts.")] = False,
    json: AsJson = False,
) -> None:
    """Run the figures of the paper on the real data and judge its claims.

    Each curve's step size is tuned on seeds of its own, then five other seeds are run. Curves that
    are in the output folder already are not run again, so an interrupted run continues. Every
    empirical sentence of the paper is judged by a criterion fixed in advance, under two counts of
    the uploaded bits: the real payload, and the paper's fixed-width count. The MNIST figure needs
    no download and takes about a minute; all five take about half an hour on two cores.

    Example: fedpaq reproduce mnist
    """
    from fedpaq.experiments import Output, choose

    chosen = choose(figures or ["mnist"])
    folder = Output(output)
    is_new = not output.exists()
    output.mkdir(parents=True, exist_ok=True)  # told now if it cannot be, not after the first curve
    missing = _run_all(chosen, folder, data_dir, quiet or json)
    for problem in missing:
        typer.echo(f"fedpaq: error: {problem}", err=True)
    if len(missing) < len(chosen):
        names = {figure.name for figure in chosen}
        verdicts = [entry for entry in folder.save_summary() if entry["figure"] in names]
        if json:
            typer.echo(json_module.dumps({"report": str(folder.report), "verdicts": verdicts}, indent=1))
        else:
            _print(verdicts)
            typer.echo(f"report: {folder.report}")
    elif is_new:
        output.rmdir()  # nothing was run: nothing is left behind
    if missing:
        raise typer.Exit(2)


def _run_all(chosen: list[Figure], folder: Output, data_dir: Path | None, quiet: bool) -> list[str]:
    """Run and plot each figure; return what is wrong with the data of those that could not run."""
    from fedpaq.experiments import run_figure

    missing = []
    console = Console(stderr=True)
    with _progress(console, quiet) as bar:
        total = bar.add_task("", total=sum(_work(figure, folder) for figure in chosen))
        for figure in chosen:
            bar.update(total, description=figure.name)
            try:
                curves = run_figure(
                    figure, folder, data_dir=data_dir, progress=_shown(bar, total, figure, console, quiet)
                )
            except DatasetError as error:
                missing.append(f"{figure.name} was not run: {error}")
                bar.update(total, total=(bar.tasks[0].total or 0) - _work(figure, folder))
                continue
            folder.save_plots(figure, curves)
    return missing


def _progress(console: Console, quiet: bool) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TaskProgressColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        speed_estimate_period=300,  # curves differ in cost: a short memory would make the estimate jump
        disable=quiet or not console.is_terminal,
    )


def _shown(
    bar: Progress, task: Any, figure: Figure, console: Console, quiet: bool
) -> Callable[[RoundSetting, int], None]:
    """Return the callback that moves the bar; where no bar can be shown, name each curve begun."""
    begun: set[str] = set()

    def advance(setting: RoundSetting, gradients: int) -> None:
        bar.update(task, description=f"{figure.name}: {setting.slug}", advance=gradients * _weight(figure))
        if setting.slug not in begun and not quiet and not console.is_terminal:
            console.print(f"{figure.name}: {setting.slug}", highlight=False)
        begun.add(setting.slug)

    return advance


def _work(figure: Figure, folder: Output) -> float:
    """Return how much of the figure is still to do, in gradients times their cost."""
    from fedpaq.experiments.curve import curve_settings
    from fedpaq.experiments.runner import expected_gradients

    return _weight(figure) * sum(
        expected_gradients(settings)
        for settings in curve_settings(figure)
        if not os.path.exists(folder.path(figure, settings))
    )


def _weight(figure: Figure) -> float:
    """Return the cost of a gradient relative to the other figures: the number of parameters, about."""
    return {"mnist": 5e3, "cifar10-248k": 2.5e5, "cifar100": 3.2e5}.get(figure.name, 1e5)


def _print(verdicts: list[dict[str, Any]]) -> None:
    table = Table(title="The paper's claims, judged", caption="ratio that decided, with its 95 % interval")
    for column in ("figure", "claim", "real payload", "fixed width"):
        table.add_column(column, overflow="fold")
    previous = ""
    for entry in verdicts:
        if entry["figure"] != previous and previous:
            table.add_section()
        name = entry["figure"] if entry["figure"] != previous else ""
        previous = entry["figure"]
        table.add_row(
            name, entry["claim"].replace("-", " "), *(_cell(judged) for judged in entry["judged"].values())
        )
    Console().print(table)


def _cell(judged: dict[str, Any]) -> str:
    verdict, ratio = judged["verdict"], judged["decisive"]
    numbers = "" if ratio is None else f"\n{ratio['value']:.3g} \\[{ratio['low']:.3g}, {ratio['high']:.3g}]"
    return f"[{COLOURS[verdict]}]{verdict}[/]{numbers}"
