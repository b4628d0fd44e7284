"""``fedpaq run``: train once and compare with FedAvg on the same seed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedpaq.cli import options
from fedpaq.cli.interrupts import orderly_end
from fedpaq.cli.printing import progress_bar, show, table
from fedpaq.cli.units import format_bytes, format_seconds, three_digits

if TYPE_CHECKING:
    from fedpaq import CostModel
    from fedpaq.hardware.ranks import Ranks
    from fedpaq.run.history import History
    from fedpaq.run.log import RoundLog
    from fedpaq.run.saving import CheckpointPolicy


RATIO = 100.0


def run(
    context: typer.Context,
    problem: options.ProblemName,
    clients_per_round: options.ClientsPerRound = 25,
    local_steps: options.LocalSteps = 5,
    total_steps: options.TotalSteps = 100,
    quantizer: options.QuantizerText = None,
    levels: options.Levels = None,
    bucket_size: options.BucketSize = None,
    downlink: options.DownlinkText = "dense",
    step_size: Annotated[
        float | None, typer.Option("--step-size", "-e", help="eta. Default: one that suits the problem.")
    ] = None,
    batch_size: options.BatchSize = 10,
    num_clients: options.NumClients = 50,
    seed: Annotated[int, typer.Option(help="Fixes every random draw of the run.")] = 0,
    ratio: Annotated[float | None, typer.Option(help=f"{options.RATIO} Default: {RATIO:g}.")] = None,
    bandwidth: options.Bandwidth = None,
    step_seconds: options.StepSeconds = None,
    straggler: options.Straggler = 0.5,
    downlink_bandwidth: options.DownlinkBandwidth = None,
    round_seconds: options.RoundSeconds = 0.0,
    own_uplinks: options.OwnUplinks = False,
    broadcast: options.Broadcast = False,
    slow_share: options.SlowShare = 0.0,
    slow_factor: options.SlowFactor = 1.0,
    accounting: Annotated[
        str, typer.Option(help="How uploaded bits are counted: payload, fixed-width or elias.")
    ] = "payload",
    executor: Annotated[str, typer.Option(help="auto, captured, dense, batched, vectorised or sequential.")] = "auto",
    optimizer: Annotated[
        str, typer.Option(help="How a local step uses its gradient: sgd, momentum:0.9 or adamw:0.01.")
    ] = "sgd",
    precision: Annotated[str, typer.Option(help="Precision of local gradients: float32 or bfloat16.")] = "float32",
    device: Annotated[str, typer.Option(help="cpu or cuda: where data and updates are kept.")] = "cpu",
    evaluate_every: Annotated[
        int, typer.Option(help="Rounds between evaluations; 0 evaluates only the last round.")
    ] = 1,
    compare: Annotated[bool, typer.Option(help="Also run FedAvg on the same seed.")] = True,
    data_dir: options.DataDir = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the history to this file, as JSON.")
    ] = None,
    aggregation: Annotated[
        str,
        typer.Option(
            help="mean, weighted (by examples), clipped or trimmed; the last two limit the harm of dishonest clients."
        ),
    ] = "mean",
    checkpoint: Annotated[Path | None, typer.Option(help="Save the state of the run to this file.")] = None,
    checkpoint_every: Annotated[int, typer.Option(help="With --checkpoint: rounds between two saves.")] = 1,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from --checkpoint if that file exists.")] = False,
    log: Annotated[
        str | None,
        typer.Option(
            help="Write each round as it ends to FILE.csv, FILE.jsonl, a TensorBoard FOLDER, wandb:PROJECT or "
            "mlflow:EXPERIMENT."
        ),
    ] = None,
    json: options.AsJson = False,
) -> None:
    """Train with FedPAQ and show what it cost.

    PROBLEM is what to learn; `fedpaq data list` shows all problems.

    FedPAQ trains one model over n clients that keep their data. In each round the server sends its
    model to r clients drawn at random. Each takes tau SGD steps on minibatches of its own data and
    uploads the *quantized* difference to the model it received. The server adds the mean of what
    arrived. Fewer uploads (tau), fewer uploaders (r) and smaller uploads (s) save time and cost
    accuracy. This command shows both, next to FedAvg, which is the same without quantization.

    Example: fedpaq run mnist-logistic --local-steps 10 --levels 1 --ratio 100

    Under torchrun the processes share the clients of each round and exchange their uploads:
    torchrun --nproc-per-node 2 -m fedpaq run mnist-logistic
    """
    from fedpaq import FedPAQConfig, Identity, problems
    from fedpaq import downlink as downlinks
    from fedpaq.hardware.ranks import join
    from fedpaq.server.aggregation import find_aggregation

    options.require_file("output", output)  # say so now, not after hours of training
    options.require_file("checkpoint", checkpoint)
    if ratio is None and bandwidth is None:
        ratio = RATIO
    cost_model = options.cost_model_of(context, ratio=ratio, accounting=accounting)
    task = problems.load(problem, num_clients=num_clients, seed=seed, data_dir=data_dir)
    config = FedPAQConfig(
        clients_per_round=clients_per_round,
        local_steps=local_steps,
        total_steps=total_steps,
        batch_size=batch_size,
        step_size=problems.suggested_step_size(problem) if step_size is None else step_size,
        seed=seed,
        optimizer=optimizer,
        precision=precision,
    )
    chosen, plain = options.choose_quantizer(quantizer, levels, bucket_size), Identity()
    way_down, dense = downlinks.parse(downlink), downlinks.Dense()
    is_fedavg = chosen == plain and way_down == dense
    methods: dict[str, Any] = {"FedAvg" if is_fedavg else "FedPAQ": {"quantizer": chosen, "downlink": way_down}}
    if compare:
        methods.setdefault("FedAvg", {"quantizer": plain, "downlink": dense})
    settings: dict[str, Any] = {
        "cost_model": cost_model,
        "executor": executor,
        "evaluate_every": evaluate_every,
        "aggregation": find_aggregation(aggregation),
        "device": device,
    }
    files = dict(zip(methods, _checkpoints(checkpoint, checkpoint_every, resume), strict=False))
    advice = "" if checkpoint is None else "continue with the same command and --resume"
    with (
        join(device) as ranks,
        orderly_end(advice, ranks.reports_failure),
        _open_log(log, files.values()) if ranks.is_first else nullcontext() as rounds,
    ):
        settings["ranks"] = ranks
        histories: dict[str, History] = {}
        for name, method in methods.items():
            history = _train(name, task, config, {**settings, **method, "checkpoint": files[name]}, json, rounds)
            if not histories:
                received = ranks.traffic.payloads  # in this run, before that of the comparison
                history.raise_if_diverged()
                if output is not None and ranks.is_first:
                    history.save(output)  # now: what follows is only the comparison, and it may fail
            histories[name] = history
    if not ranks.is_first:
        return
    summary = {name: _summary(history) for name, history in histories.items()}
    show(summary, json, lambda: _tables(histories, ranks, cost_model, received))


def _checkpoints(path: Path | None, every: int, resume: bool) -> list[CheckpointPolicy | None]:
    """Return where the run saves, and where the FedAvg it is compared with does."""
    from fedpaq.run.saving import CheckpointPolicy, tracked_name

    if path is None:
        return [None, None]
    paths = (path, path.with_name(f"{path.name}.fedavg"))
    tracked_as = tracked_name(path)
    return [CheckpointPolicy(own, every=every, resume=resume, tracked_as=tracked_as) for own in paths]


def _open_log(target: str | None, files: Iterable[CheckpointPolicy | None]) -> AbstractContextManager[RoundLog | None]:
    """Open the log, but first refuse a checkpoint that exists: neither log nor training time is lost."""
    from fedpaq.run.log import open_log

    saved = [policy for policy in files if policy is not None]
    for policy in saved:
        policy.require_free()
    if target is None:
        return nullcontext()
    resume, run = (saved[0].resume, saved[0].tracked_as) if saved else (False, None)
    return open_log(target, resume=resume, run=run)


def _train(
    name: str, task: Any, config: Any, settings: dict[str, Any], quiet: bool, rounds: RoundLog | None
) -> History:
    from fedpaq import sweep

    total = config.num_rounds
    with progress_bar(name, total, quiet=quiet or not settings["ranks"].is_first) as update:

        def after_round(_: int, record: Any, params: Any) -> None:
            loss = "" if record.loss is None else f", loss {record.loss:.4f}"
            update(completed=record.round, detail=f"round {record.round}/{total}{loss}")
            if rounds is not None:
                rounds.add(name, record)

        (history,) = sweep(task, [config], callback=after_round, **settings)
        return history


def _summary(history: History) -> dict[str, Any]:
    settings = ("problem", "dimension", "quantizer", "downlink", "executor", "config", "diverged")
    amounts = ("loss", "accuracy", "payload_bytes", "download_bytes", "upload_bits", "seconds")
    return {
        **{name: getattr(history, name) for name in settings},
        "rounds": history.final.round,
        **{name: getattr(history.final, name) for name in amounts},
    }


def _cells(history: History, in_seconds: bool) -> dict[str, str]:
    """Return a row of the table by heading: a new column is one line here, and one in ``_summary``."""
    final = history.final
    uploads = max(1, final.round * history.config["clients_per_round"])
    return {
        "quantizer": "none (FedAvg)" if history.quantizer == "none" else history.quantizer,
        ">loss": "diverged" if history.diverged else f"{final.loss:.4f}",
        ">accuracy": "-" if history.diverged or final.accuracy is None else f"{final.accuracy:.1%}",
        ">upload": format_bytes(final.payload_bytes / uploads),
        ">download": format_bytes(final.download_bytes / uploads),
        ">both, total": format_bytes(final.payload_bytes + final.download_bytes),
        ">time": format_seconds(final.seconds) if in_seconds else f"{final.seconds:,.0f}",
    }


def _tables(histories: dict[str, History], ranks: Ranks, cost_model: CostModel, received: int) -> Iterator[Any]:
    in_seconds = cost_model.is_in_seconds
    first, *others = histories.values()
    config, name = first.config, next(iter(histories))
    rows = [_cells(history, in_seconds) for history in histories.values()]
    yield table(
        rows[0],
        [row.values() for row in rows],
        title=f"{name} on {first.problem}: p={first.dimension}, n={first.num_clients}, "
        f"r={config['clients_per_round']}, tau={config['local_steps']}, T={config['total_steps']}, "
        f"eta={config['step_size']:g}",
    )
    if first.final.loss is not None and first.final.loss > (first.records[0].loss or math.inf):
        rise = f"from {first.records[0].loss:.4g} to {first.final.loss:.4g}"
        yield f"[red]The loss rose[/red] {rise}: choose a smaller --step-size."
    for other in others:
        if other.diverged is not None:
            yield f"FedAvg diverged in {other.diverged}"
            continue
        uploads = three_digits(other.final.payload_bytes / first.final.payload_bytes)
        time = three_digits(other.final.seconds / first.final.seconds)
        yield f"FedAvg uploads {uploads} times as many bytes and takes {time} times as long."
    unit = "" if in_seconds else ", in units of one gradient"
    down = "" if cost_model.downlink_bandwidth is None else ", downloads"
    fixed = f", {cost_model.round_seconds:g} s per round" if cost_model.round_seconds else ""
    counted = "" if cost_model.accounting == "payload" else f" (counted as {cost_model.accounting})"
    charged = f"uploads{counted}{down}{fixed} and the slowest client{unit}"
    yield f"[dim]Time is modelled: {charged}. Executor: {first.executor}.[/dim]"
    if received:
        yield _traffic(ranks, first, received)


def _traffic(ranks: Ranks, history: History, received: int) -> str:
    """Say what the ranks exchanged in a run, next to what a dense sum of float32 would have been."""
    from fedpaq.hardware.ranks import dense_bytes

    dense = dense_bytes(4 * history.dimension, ranks.size)
    return (
        f"{ranks.size} ranks: each received {format_bytes(received / history.final.round)} of payloads "
        f"per round; a dense all-reduce of float32 takes {format_bytes(dense)}."
    )
