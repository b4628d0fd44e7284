"""``fedpaq plan``: which local steps, cohort, quantizer and step size are fastest on a network."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedpaq.cli import options
from fedpaq.cli.printing import at_work, line, progress_bar, show, table
from fedpaq.cli.units import format_bytes, format_seconds
from fedpaq.errors import ConfigError

if TYPE_CHECKING:
    from fedpaq import CostModel
    from fedpaq.planner import Choice, Plan, RoundSetting
    from fedpaq.planner.closed_form import Guarantee
    from fedpaq.problems import Problem


FOR_PILOTS = ("downlink", "confidence", "max_steps", "compare")  # options without effect on a plan from theory


def plan(
    context: typer.Context,
    problem: options.ProblemName,
    target_loss: Annotated[float, typer.Option("--target-loss", help="Training loss to reach.")],
    bandwidth: options.Bandwidth = None,
    ratio: Annotated[float | None, typer.Option(help=options.RATIO)] = None,
    step_seconds: options.StepSeconds = None,
    straggler: options.Straggler = 0.5,
    downlink_bandwidth: options.DownlinkBandwidth = None,
    round_seconds: options.RoundSeconds = 0.0,
    own_uplinks: options.OwnUplinks = False,
    broadcast: options.Broadcast = False,
    slow_share: options.SlowShare = 0.0,
    slow_factor: options.SlowFactor = 1.0,
    max_clients: Annotated[int | None, typer.Option(help="Most clients in a round. Default: all.")] = None,
    num_clients: options.NumClients = 50,
    batch_size: options.BatchSize = 10,
    max_steps: Annotated[int, typer.Option(help="Local steps after which a candidate is dropped.")] = 2000,
    quantizer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help="A quantizer to choose from, e.g. rotated:0.1; repeatable. Default: low-precision, rotated and none.",
        ),
    ] = None,
    downlink: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help="A way down to choose from, e.g. dense or rotated:1; repeatable. Default: dense, and coded changes "
            "if downloads are priced.",
        ),
    ] = None,
    seed: options.DataSeed = 0,
    confidence: Annotated[
        float, typer.Option(help="Share of runs that are to be at the target after the scheduled rounds.")
    ] = 0.9,
    from_theory: Annotated[
        bool, typer.Option("--from-theory", help="Use only the bounds: no training, but far too pessimistic.")
    ] = False,
    compare: Annotated[bool, typer.Option(help="Also time FedAvg and QSGD.")] = True,
    plot: Annotated[
        Path | None, typer.Option(help="Draw a map of times, and time against upload, to this file (.png, .svg, .pdf).")
    ] = None,
    data_dir: options.DataDir = None,
    json: options.AsJson = False,
) -> None:
    """Find the fastest way to a training loss on a given network.

    PROBLEM is what to learn; `fedpaq data list` shows all problems.

    Candidates train in simulation, side by side in modelled time: uploads of real payload size over
    the bandwidth, downloads and a fixed time per round where you price them, plus the slowest client of each
    round. The first to reach the target win. The best of them run again on fresh seeds, which gives the
    predicted time and its range. Then the pick runs past the target, which gives the rounds to schedule: after
    them nine in ten runs are at the target. The last line is the command that runs it.

    Example: fedpaq plan mnist-logistic --target-loss 0.1 --bandwidth 100kbit/s --step-seconds 0.05
    """
    from fedpaq import planner, problems

    if plot is not None:
        options.require_picture(plot, drawn=not from_theory, advice="leave out --from-theory")
    model = options.cost_model_of(context)
    unit = "s" if model.is_in_seconds else "gradient times"
    if from_theory:
        options.require_absent(context, FOR_PILOTS, "--from-theory")
    task = problems.load(problem, num_clients=num_clients, seed=seed, data_dir=data_dir)
    if from_theory:
        most = num_clients if max_clients is None else max_clients
        _from_theory(task, target_loss, model, most, batch_size, quantizer, json)
        return
    with progress_bar("checking the target", quiet=json) as update:
        found = planner.plan(
            task,
            target_loss=target_loss,
            cost_model=model,
            max_clients=max_clients,
            batch_size=batch_size,
            max_steps=max_steps,
            quantizers=quantizer,
            downlinks=downlink,
            confidence=confidence,
            compare=compare,
            progress=lambda stage, seconds: update(description=stage, detail=f"{seconds:,.0f} {unit} modelled"),
        )
    network = {options.flag(name): value for name, value in options.given(context, options.NETWORK).items()}
    command = _command(problem, found, seed, {**network, "--data-dir": data_dir})
    values = {**found.to_dict(), "command": command}
    show(values, json, lambda: _tables(found, unit, compare, command))
    if plot is not None:
        _draw(found, plot, quantizer, downlink, quiet=json)


def _command(problem: str, found: Plan, seed: int, network: dict[str, Any]) -> str:
    """Return the ``fedpaq run`` that does what the plan recommends, priced as it was planned."""
    from fedpaq.downlink import Dense
    from fedpaq.quantizers import text_of

    config = found.config(seed)
    words = {
        "-n": found.task.problem.num_clients,
        "-r": config.clients_per_round,
        "-t": config.local_steps,
        "-T": config.total_steps,
        "-B": config.batch_size,
        "-e": config.step_size,
        "--quantizer": text_of(found.quantizer),
        "--downlink": None if found.downlink == Dense() else found.downlink.name,
        "--seed": seed or None,
        **network,
    }
    given = [
        name if value is True else f"{name} {shlex.quote(str(value))}"
        for name, value in words.items()
        if value is not None
    ]
    return " ".join(["fedpaq run", shlex.quote(problem), *given])


def _draw(
    found: Plan, path: Path, quantizers: Sequence[Any] | None, downlinks: Sequence[Any] | None, quiet: bool
) -> None:
    """Time every tau and quantizer for the map, and draw it."""
    from fedpaq.planner.plot import save_plot, time_map

    space = found.task.default_space(quantizers, downlinks)
    total = len(space.local_steps) * len(space.quantizers)
    with progress_bar("map", total, quiet=quiet) as update:
        times = time_map(found, space, lambda setting: update(advance=1, detail=str(setting)))
    save_plot(found, times, path)


def _tables(found: Plan, unit: str, compared: bool, command: str) -> Iterator[Any]:
    pick, baselines, tied = found.pick, {"FedAvg": found.fedavg, "QSGD": found.qsgd}, found.tied
    in_cells = format_seconds if unit == "s" else lambda times: f"{times:,.0f}"
    written = format_seconds if unit == "s" else lambda times: f"{times:,.0f} {unit}"
    rows = [("pick", pick), *(("tied" if choice in tied else "runner-up", choice) for choice in found.runners_up[:3])]
    rows += [(name, choice) for name, choice in baselines.items() if choice is not None]
    yield table(
        ("", ">tau", ">r", ">quantizer", ">step size", ">rounds", ">time", ">±", ">up", ">down"),
        [(name, *_cells(choice, in_cells)) for name, choice in rows],
        title=f"{found.task.problem.name} to a training loss of {found.task.target_loss:g}",
    )
    yield (
        f"[dim]Means of {len(pick.runs)} runs up to the first round at the target"
        + ("" if unit == "s" else f", in {unit}")
        + "; ± is the standard error of the time."
        + (" Tied: at most two standard errors, or 1 %, from the fastest; the pick sends fewer bytes." if tied else "")
        + "[/dim]"
    )
    yield (
        f"Ask {counted(pick.setting.clients_per_round, 'client')} per round, each for "
        f"{counted(pick.setting.local_steps, 'local step')} of size {pick.step_size:g}, and send updates "
        f"{_sent(pick.setting)}: {written(pick.seconds)} on average to the first hit; nine in ten runs take "
        f"{in_cells(pick.low)} to {written(pick.high)}."
    )
    yield _scheduled(found, written)
    if compared:
        yield " ".join(f"{name}, tuned: {_slower(choice, pick)}." for name, choice in baselines.items())
    yield f"[dim]Found with {found.gradient_steps:,} simulated local steps.[/dim]"
    yield line(command)


def _scheduled(found: Plan, written: Callable[[float], str]) -> str:
    """Say what the scheduled rounds bring."""
    made = found.schedule
    rounds = counted(made.rounds, "round")
    if not made.is_held:
        return (
            f"Schedule {rounds}, {written(made.seconds)}: {made.share:.0%} of {made.runs} runs reached the target, "
            "but they do not stay there; watch the loss and stop at the target, or choose a smaller step size."
        )
    return (
        f"Schedule {rounds}, {written(made.seconds)}: {made.share:.0%} of {made.runs} fresh runs are at the target "
        f"then (level held), {made.before:.0%} one round earlier."
    )


def counted(number: int, noun: str) -> str:
    """Return e.g. "1 client" or "5 clients"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _sent(setting: RoundSetting) -> str:
    """Return how updates and model are sent, and the options that make ``fedpaq run`` do so."""
    from fedpaq.downlink import Dense
    from fedpaq.quantizers import text_of

    words = {0: "as float32", None: "quantized"}
    how = words.get(setting.levels) or f"quantized to {counted(setting.levels or 0, 'level')}"
    changes = (
        "" if setting.downlink == Dense() else f", the model as coded changes (--downlink {setting.downlink.name})"
    )
    return f"{how} (--quantizer {text_of(setting.quantizer)}){changes}"


def _setting(setting: RoundSetting) -> tuple[str, str, str]:
    from fedpaq.quantizers import text_of

    quantizer = f"s={setting.levels}" if setting.levels else text_of(setting.quantizer)
    return str(setting.local_steps), str(setting.clients_per_round), quantizer


def _cells(choice: Choice, written: Callable[[float], str]) -> list[str]:
    return [
        *_setting(choice.setting),
        f"{choice.step_size:.3g}",
        f"{choice.rounds:.1f}",
        written(choice.seconds),
        f"{choice.standard_error / choice.seconds:.0%}",
        format_bytes(choice.upload_bytes),
        format_bytes(choice.download_bytes),
    ]


def _slower(choice: Choice | None, pick: Choice) -> str:
    from fedpaq.planner.recommendation import BASELINE_LIMIT

    if choice is None:
        return f"the target was not reached within {BASELINE_LIMIT:.0f} times the pick's time"
    return f"{choice.seconds / pick.seconds:.1f} times the pick's time"


def _from_theory(
    task: Problem,
    target_loss: float,
    model: CostModel,
    max_clients: int,
    batch_size: int,
    quantizers: Sequence[Any] | None,
    json: bool,
) -> None:
    """Print the configurations by what the theorems guarantee."""
    from fedpaq.config import require_int
    from fedpaq.planner import RoundSetting
    from fedpaq.planner.closed_form import LOOSENESS, TheoryInputs, plan_from_theory
    from fedpaq.planner.search_space import LOCAL_STEPS, default_cohorts, default_quantizers
    from fedpaq.quantizers import as_quantizer
    from fedpaq.theory import estimate

    require_int("max_clients", max_clients, 1, task.num_clients)
    with at_work("estimating L, mu and sigma", quiet=json):
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
        for quantizer in quantizers or default_quantizers(task.dimension)
    ]
    inputs = TheoryInputs(
        assumptions=known.assumptions(),
        start=known.initial_error.value,
        dimension=task.dimension,
        num_clients=task.num_clients,
    )
    with at_work(f"the theorems' rounds for {len(settings)} settings", quiet=json):
        found = plan_from_theory(inputs, settings, target=target_loss - least, cost_model=model, batch_size=batch_size)
    unit = "seconds" if model.is_in_seconds else "gradient times"
    show([guarantee.to_dict() for guarantee in found], json, lambda: [_guarantees(found[:5], unit), LOOSENESS])


def _guarantees(found: list[Guarantee], unit: str) -> Any:
    rows = [(*_setting(entry.setting), f"{entry.rounds:.3g}", f"{entry.seconds:.3g}") for entry in found]
    title = "What the theorems guarantee, fastest first"
    return table((">tau", ">r", ">quantizer", ">rounds", f">{unit}"), rows, title=title)
