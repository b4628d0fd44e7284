"""``fedpaq reproduce``: the paper's figures, run and judged."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedpaq.cli.interrupts import orderly_end
from fedpaq.cli.models import COLOURS, model_tables, run_models
from fedpaq.cli.options import AsJson, DataDir, DownlinkBandwidth, RoundSeconds, StepSeconds, gradient_prices
from fedpaq.cli.printing import grouped, line, progress_bar, show
from fedpaq.config import require_positive
from fedpaq.errors import ConfigError, DatasetError

if TYPE_CHECKING:
    from fedpaq.experiments import Figure, Output, PaperSetting

WORTH_PROCESSES = 1e10  # gradients times their cost, about 20 seconds: starting processes takes some


def reproduce(
    figures: Annotated[list[str] | None, typer.Argument(metavar="FIGURE")] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder of curves, plots and report; continued if it exists.")
    ] = Path("reproduction"),
    data_dir: DataDir = None,
    device: Annotated[str, typer.Option(help="cpu or cuda: where the runs take place.")] = "cpu",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress, only the verdicts.")] = False,
    json: AsJson = False,
    downlink_bandwidth: DownlinkBandwidth = None,
    round_seconds: RoundSeconds = 0.0,
    step_seconds: StepSeconds = None,
    minutes: Annotated[
        float | None, typer.Option(help="With models: begin no run that would end later. The same command goes on.")
    ] = None,
) -> None:
    """Run the figures of the paper on the real data and judge its claims.

    A FIGURE is mnist (the default), cifar10-92k, cifar10-248k, cifar100, fashion, all of these, rates or models.

    Each curve's step size is tuned on seeds of its own, then other seeds are run, ten at a time
    (MNIST: thirty), until every claim is decided or a tie, or no more are allowed. Curves that
    are in the output folder already are not run again, so an interrupted run continues. Every
    empirical sentence of the paper is judged by a criterion fixed in advance, under three counts of
    the uploaded bits: the real payload, QSGD's bound for its Elias code, and a fixed width per
    coordinate, which is our reading of the paper (it gives no formula). The MNIST figure needs no
    download and takes about a minute; the networks take minutes each.

    The figure rates is not in the paper: on the problems of all five it compares the quantizer
    Rotated at four rates with s = 1, 5, 10 and float32, loss against bytes really uploaded.

    models is a study of a ResNet-18 on CIFAR-10 and of a byte transformer: float32, s = 1 and 64 and
    Rotated at four rates, with and without coded downloads. It takes an hour or more of an H200 (--device cuda),
    and days of a CPU. --minutes cuts it into pieces.

    --downlink-bandwidth and --round-seconds judge and draw the same curves on a network where downloads
    and rounds take time as well, in the folder priced inside the output folder; --step-seconds says how
    long a local step is, which is the unit.

    Example: fedpaq reproduce mnist
    """
    from fedpaq.experiments import Output, choose
    from fedpaq.experiments.figures import BATCH_SIZE
    from fedpaq.experiments.output import PricedOutput
    from fedpaq.experiments.rates import MODELS

    names = figures or ["mnist"]
    chosen, with_models = choose(names), MODELS in names
    if minutes is not None and not with_models:
        raise ConfigError(f"minutes={minutes:g} has no effect without models; leave it out")
    if minutes is not None:
        require_positive("minutes", minutes)
    if step_seconds is not None and downlink_bandwidth is None and not round_seconds:
        raise ConfigError(
            f"step_seconds={step_seconds} has no effect without a price; add --downlink-bandwidth or --round-seconds, "
            "or leave it out"
        )
    folder = Output(output, device)
    is_new = not output.exists()
    if not is_new and not output.is_dir():
        raise ConfigError(f"output={str(output)!r} is not a folder; name one, new or from an earlier run")
    prices = gradient_prices(downlink_bandwidth, round_seconds, step_seconds, BATCH_SIZE)
    if with_models and any(prices.values()):
        raise ConfigError("models have no modelled time; reproduce them without prices")
    output.mkdir(parents=True, exist_ok=True)  # fails now, not after the first curve
    if any(prices.values()):
        folder = PricedOutput(**vars(folder), **prices)
        chosen = [folder.price(figure) for figure in chosen]
    wanted, all_done = len(chosen) + with_models, True
    with orderly_end("the same command goes on with what is missing"):
        missing = _run_all(chosen, folder, data_dir, quiet or json) if chosen else []
        if with_models:
            try:
                all_done = run_models(folder, data_dir, minutes, quiet or json)
            except DatasetError as error:
                missing.append(f"models were not run: {error}")
    for problem in missing:
        typer.echo(f"fedpaq: error: {problem}", err=True)
    if len(missing) < wanted:
        shown = {figure.name for figure in chosen}
        studies = folder.save_studies() if with_models else []
        verdicts = [entry for entry in folder.save_summary() if entry["figure"] in shown]
        found = {"report": str(folder.report), "verdicts": verdicts, **({"models": studies} if with_models else {})}
        show(found, json, lambda: _tables(verdicts, studies, folder))
    elif is_new:
        output.rmdir()  # nothing was run: nothing is left behind
    if not all_done:
        typer.echo("fedpaq: the time is up; the same command goes on with what is missing", err=True)
    if missing:
        raise typer.Exit(2)


def _run_all(chosen: list[Figure], folder: Output, data_dir: Path | None, quiet: bool) -> list[str]:
    """Run and plot each figure; return what is wrong with the data of those that could not run."""
    from fedpaq.experiments import run_figure
    from fedpaq.experiments.schedule import ahead, most_processes

    missing = []
    work = _work(chosen, folder)
    processes = most_processes(folder.device) if sum(work.values()) > WORTH_PROCESSES else 1
    shown: Callable[[Figure], Callable[[PaperSetting, int], None]] = lambda figure: _shown(update, figure, quiet)
    with (
        progress_bar("", sum(work.values()), quiet=quiet) as update,
        closing(ahead(chosen, folder, shown, data_dir=data_dir, processes=processes)) as in_turn,
    ):
        for figure in in_turn:
            update(description=figure.name)
            try:
                curves = run_figure(figure, folder, data_dir=data_dir, progress=shown(figure))
            except DatasetError as error:
                missing.append(f"{figure.name} was not run: {error}")
                del work[figure.name]
                update(total=sum(work.values()))
                continue
            folder.save_plots(figure, curves)
    return missing


def _shown(update: Callable[..., None], figure: Figure, quiet: bool) -> Callable[[PaperSetting, int], None]:
    """Return the callback that moves the bar; where no bar can be shown, it names each curve as it begins."""
    begun: set[str] = set()

    def advance(setting: PaperSetting, gradients: int) -> None:
        name = f"{figure.name}: {setting.slug}"
        update(description=name, advance=gradients * _weight(figure))
        if name not in begun and not quiet and not sys.stderr.isatty():
            print(name, file=sys.stderr)
        begun.add(name)

    return advance


def _work(chosen: list[Figure], folder: Output) -> dict[str, float]:
    """Return how much work each figure still needs: gradients times their cost, a shared curve counted once."""
    from fedpaq.experiments.curve import curve_settings
    from fedpaq.experiments.runner import expected_gradients

    work, counted = {}, set[Path]()
    for figure in chosen:
        missing = {folder.path(figure, settings): settings for settings in curve_settings(figure, folder.device)}
        missing = {
            path: settings for path, settings in missing.items() if path not in counted and not os.path.exists(path)
        }
        work[figure.name] = _weight(figure) * sum(map(expected_gradients, missing.values()))
        counted.update(missing)
    return work


def _weight(figure: Figure) -> float:
    """Return the cost of a gradient relative to the other figures, about its number of parameters."""
    return {"mnist": 5e3, "cifar10-248k": 2.5e5, "cifar100": 3.2e5}.get(figure.folder, 1e5)


def _tables(verdicts: list[dict[str, Any]], studies: list[dict[str, Any]], folder: Output) -> Iterator[Any]:
    from fedpaq.experiments.output import in_words

    paper = [entry for entry in verdicts if len(entry["judged"]) > 1]
    beside = [entry for entry in verdicts if len(entry["judged"]) == 1]
    if paper or not (beside or studies):
        yield grouped(
            ("figure", "claim", "real payload", "Elias bound", "fixed width"),
            _rows(paper),
            title="The paper's claims, judged",
        )
    if beside:
        columns = ("figure", "claim", "real payload")
        yield grouped(columns, _rows(beside, digits=4), title="Rotated, judged")  # ratios near 1
    yield from model_tables(studies)
    if verdicts:
        explained = "Below a verdict: the ratio that decided it, its 95 % interval, and the level it is the time to."
        yield f"[dim]{explained}[/dim]"
    if folder.prices:
        yield f"[dim]Not the paper's network, but {in_words(folder.prices)}.[/dim]"
    yield line(f"report: {folder.report}")


def _rows(verdicts: list[dict[str, Any]], digits: int = 3) -> list[tuple[str, ...]]:
    return [
        (
            entry["figure"],
            entry["claim"].replace("-", " "),
            *(_cell(judged, digits) for judged in entry["judged"].values()),
        )
        for entry in verdicts
    ]


def _cell(judged: dict[str, Any], digits: int) -> str:
    verdict, ratio = judged["verdict"], judged["decisive"]
    numbers = ""
    if ratio is not None:
        value, low, high = (f"{ratio[name]:.{digits}g}" for name in ("value", "low", "high"))
        numbers = f"\n{value} \\[{low}, {high}]" + (f"\n{ratio['at']}" if "at" in ratio else "")
    return f"[{COLOURS[verdict]}]{verdict}[/]{numbers}"
