"""``fedpaq plan``: which local steps, cohort, levels and step size are fastest on a network."""

from __future__ import annotations

import json as json_module
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedpaq.cli.options import AsJson, DataDir
from fedpaq.cli.picture import require_picture
from fedpaq.cli.progress import progress_bar
from fedpaq.cli.units import format_bytes, format_seconds, parse_bandwidth
from fedpaq.errors import ConfigError

if TYPE_CHECKING:
    from fedpaq.planner import Choice, Plan, RoundSetting
    from fedpaq.planner.closed_form import Guarantee


def plan(
    problem: Annotated[str, typer.Argument(help="What is learnt; `fedpaq data list` shows all.")],
    target_loss: Annotated[float, typer.Option("--target-loss", help="Training loss to reach.")],
    bandwidth: Annotated[
        str | None, typer.Option(help="Uplink shared by the clients of a round, e.g. 1Mbit/s.")
    ] = None,
    step_seconds: Annotated[float, typer.Option(help="Mean seconds a client takes for one local step.")] = 0.05,
    straggler: Annotated[
        float, typer.Option(help="Share of that time that varies from client to client, 0 to 1.")
    ] = 0.5,
    ratio: Annotated[
        float | None,
        typer.Option(help="Instead of --bandwidth: time to upload a float32 model over time of one gradient."),
    ] = None,
    max_clients: Annotated[int | None, typer.Option(help="Most clients a round may ask; default: all.")] = None,
    num_clients: Annotated[int, typer.Option("--num-clients", "-n", help="n: clients in all.")] = 50,
    batch_size: Annotated[int, typer.Option("--batch-size", "-B", help="B: samples per step.")] = 10,
    max_steps: Annotated[int, typer.Option(help="Local steps after which a candidate is given up.")] = 2000,
    quantizer: Annotated[
        list[str] | None,
        typer.Option(
            help="One to choose from, e.g. low-precision:4; repeat for more. Default: 1, 5, 10 levels, none."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Fixes data split and initial weights.")] = 0,
    from_theory: Annotated[
        bool, typer.Option("--from-theory", help="Only use the bounds: no training, far from the truth.")
    ] = False,
    compare: Annotated[bool, typer.Option(help="Also time FedAvg and QSGD.")] = True,
    plot: Annotated[
        Path | None, typer.Option(help="Write the map of times and the front of time against upload here.")
    ] = None,
    data_dir: DataDir = None,
    json: AsJson = False,
) -> None:
    """Find the fastest way to a training loss on a given network.

    Candidates train in simulation, side by side in modelled time: uploads of real payload size over the
    bandwidth, plus the slowest client of each round. The first to reach the target win; the best of
    them run again on fresh seeds, which gives the predicted time and its range.

    Example: fedpaq plan mnist-logistic --target-loss 0.1 --bandwidth 100kbit/s --step-seconds 0.05
    """
    from fedpaq import planner, problems
    from fedpaq.planner.search_space import QUANTIZERS

    if plot is not None:
        require_picture(plot, wanted=not from_theory, advice="leave out --from-theory")
    quantizers = quantizer or QUANTIZERS
    model = _cost_model(bandwidth, step_seconds, straggler, ratio, batch_size)
    task = problems.load(problem, num_clients=num_clients, seed=seed, data_dir=data_dir)
    if from_theory:
        most = num_clients if max_clients is None else max_clients
        _from_theory(task, target_loss, model, most, batch_size, quantizers, json)
        return
    with progress_bar(json) as bar:
        job = bar.add_task("checking the target", total=None, note="")

        def show(stage: str, seconds: float) -> None:
            bar.update(job, description=stage, note=f"{seconds:,.0f} s modelled")

        found = planner.plan(
            task,
            target_loss=target_loss,
            cost_model=model,
            max_clients=max_clients,
            batch_size=batch_size,
            max_steps=max_steps,
            quantizers=quantizers,
            compare=compare,
            progress=show,
        )
    if json:
        typer.echo(json_module.dumps(found.to_dict(), indent=1, allow_nan=False))
    else:
        _print(found, in_gradient_times=ratio is not None, compared=compare)
    if plot is not None:
        _draw(found, plot, quantizers, quiet=json)


def _draw(found: Plan, path: Path, quantizers: Sequence[Any], quiet: bool) -> None:
    """Time every tau and quantizer for the map, and draw it."""
    from fedpaq.planner.plot import save_plot, time_map

    space = found.task.default_space(quantizers)
    with progress_bar(quiet) as bar:
        job = bar.add_task("map", total=len(space.local_steps) * len(space.quantizers), note="")

        def show(setting: Any) -> None:
            bar.update(job, advance=1, note=str(setting))

        times = time_map(found, space, show)
    save_plot(found, times, path)


def _cost_model(
    bandwidth: str | None, step_seconds: float, straggler: float, ratio: float | None, batch_size: int
) -> Any:
    """Return the cost model; a step's mean time is split into a fixed and a random part."""
    from fedpaq import CostModel
    from fedpaq.config import require_int, require_positive

    if (bandwidth is None) == (ratio is None):
        raise ConfigError(
            f"bandwidth={bandwidth} and ratio={ratio}: give exactly one, e.g. --bandwidth 1Mbit/s"
        )
    if ratio is not None:
        return CostModel.from_ratio(ratio)
    assert bandwidth is not None  # exactly one is set
    require_positive("step_seconds", step_seconds)
    require_int("batch_size", batch_size, 1)
    if not 0 < straggler <= 1:
        raise ConfigError(f"straggler={straggler} is not a share; choose above 0 and up to 1")
    gradient = step_seconds / batch_size
    return CostModel(
        bandwidth=parse_bandwidth(bandwidth), shift=(1 - straggler) * gradient, scale=1 / (straggler * gradient)
    )


def _print(found: Plan, *, in_gradient_times: bool, compared: bool) -> None:
    console, pick = Console(), found.pick
    show = (lambda seconds: f"{seconds:,.0f}") if in_gradient_times else format_seconds
    unit = " gradient times" if in_gradient_times else ""
    table = Table(title=f"{found.task.problem.name} to a training loss of {found.task.target_loss:g}", box=None)
    for column in ("", "tau", "r", "s", "step size", "rounds", "time", "90 % of runs", "upload"):
        table.add_column(column, justify="right" if column else "left")
    rows = [("pick", pick), *(("runner-up", choice) for choice in found.runners_up[:3])]
    rows += [(name, choice) for name, choice in (("FedAvg", found.fedavg), ("QSGD", found.qsgd)) if choice]
    for name, choice in rows:
        table.add_row(name, *_cells(choice, show))
    console.print(table)
    console.print(
        f"Ask {counted(pick.setting.clients_per_round, 'client')} a round, each for "
        f"{counted(pick.setting.local_steps, 'local step')} of size {pick.step_size:g}, and send updates "
        + _sent(pick.setting)
        + f": {show(pick.seconds)}{unit} on average."
    )
    if compared:
        console.print(
            f"FedAvg, tuned: {_slower(found.fedavg, pick)}. QSGD, tuned: {_slower(found.qsgd, pick)}."
        )
    console.print(f"Found with {found.gradient_steps:,} simulated local steps.", style="dim")


def counted(number: int, noun: str) -> str:
    """Return e.g. "1 client" or "5 clients"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _sent(setting: RoundSetting) -> str:
    """Return how updates are sent, and the option that makes ``fedpaq run`` do so."""
    from fedpaq.quantizers import text_of

    words = {0: "as float32", None: "quantized"}
    how = words.get(setting.levels) or f"quantized to {counted(setting.levels or 0, 'level')}"
    return f"{how} (--quantizer {text_of(setting.quantizer)})"


def _quantizer_cell(setting: RoundSetting) -> str:
    from fedpaq.quantizers import text_of

    return str(setting.levels or text_of(setting.quantizer))


def _cells(choice: Choice, show: Any) -> list[str]:
    return [
        str(choice.setting.local_steps),
        str(choice.setting.clients_per_round),
        _quantizer_cell(choice.setting),
        f"{choice.step_size:.3g}",
        f"{choice.rounds:.1f}",
        show(choice.seconds),
        f"{show(choice.low)} - {show(choice.high)}",
        format_bytes(choice.upload_bytes),
    ]


def _slower(choice: Choice | None, pick: Choice) -> str:
    from fedpaq.planner.recommendation import BASELINE_LIMIT

    if choice is None:
        return f"more than {BASELINE_LIMIT:.0f} times slower, or the target was not reached"
    return f"{choice.seconds / pick.seconds:.1f} times the pick's time"


def _from_theory(
    task: Any,
    target_loss: float,
    model: Any,
    max_clients: int,
    batch_size: int,
    quantizers: Sequence[Any],
    json: bool,
) -> None:
    """Print the settings by what the theorems guarantee."""
    from fedpaq.config import require_int
    from fedpaq.planner import RoundSetting
    from fedpaq.planner.closed_form import LOOSENESS, TheoryInputs, plan_from_theory
    from fedpaq.planner.search_space import LOCAL_STEPS, default_cohorts
    from fedpaq.quantizers import as_quantizer
    from fedpaq.theory import estimate

    require_int("max_clients", max_clients, 1, task.num_clients)
    known = estimate(task)
    if known.optimum is None or known.initial_error is None:
        raise ConfigError(
            f"problem={task.name!r} is not known to be strongly convex, as --from-theory needs; plan without it"
        )
    least = float(task.evaluate(known.optimum).loss)
    if target_loss <= least:
        raise ConfigError(
            f"target_loss={target_loss} is below the lowest training loss, {least:.4g}; choose a higher target"
        )
    settings = [
        RoundSetting(tau, r, as_quantizer(quantizer))
        for tau in LOCAL_STEPS
        for r in default_cohorts(max_clients)
        for quantizer in quantizers
    ]
    inputs = TheoryInputs(
        assumptions=known.assumptions(),
        start=known.initial_error.value,
        dimension=task.dimension,
        num_clients=task.num_clients,
    )
    found = plan_from_theory(
        inputs, settings, target=target_loss - least, cost_model=model, batch_size=batch_size
    )
    if json:
        typer.echo(json_module.dumps([guarantee.to_dict() for guarantee in found], indent=1))
        return
    _print_guarantees(found[:5])
    Console().print(LOOSENESS)


def _print_guarantees(found: list[Guarantee]) -> None:
    table = Table(title="What the theorems guarantee, fastest first", box=None)
    for column in ("tau", "r", "s", "rounds", "seconds"):
        table.add_column(column, justify="right")
    for guarantee in found:
        setting = guarantee.setting
        table.add_row(
            str(setting.local_steps),
            str(setting.clients_per_round),
            _quantizer_cell(setting),
            f"{guarantee.rounds:.3g}",
            f"{guarantee.seconds:.3g}",
        )
    Console().print(table)
