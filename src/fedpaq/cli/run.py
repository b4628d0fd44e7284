"""``fedpaq run``: train once and compare with FedAvg on the same seed."""

from __future__ import annotations

import json as json_module
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedpaq.cli.interrupts import orderly_end
from fedpaq.cli.options import AsJson, DataDir
from fedpaq.cli.progress import progress_bar
from fedpaq.cli.units import format_bytes, format_seconds, parse_bandwidth
from fedpaq.errors import ConfigError

if TYPE_CHECKING:
    from fedpaq.hardware.ranks import Ranks
    from fedpaq.run.history import History
    from fedpaq.run.log import RoundLog
    from fedpaq.run.saving import CheckpointPolicy


def run(
    problem: Annotated[str, typer.Argument(help="What to learn; `fedpaq data list` shows all.")],
    clients_per_round: Annotated[
        int, typer.Option("--clients-per-round", "-r", help="r: clients drawn each round.")
    ] = 25,
    local_steps: Annotated[
        int, typer.Option("--local-steps", "-t", help="tau: SGD steps a client takes between uploads.")
    ] = 5,
    total_steps: Annotated[
        int, typer.Option("--total-steps", "-T", help="T: local steps in all, a multiple of tau.")
    ] = 100,
    levels: Annotated[
        int, typer.Option("--levels", "-s", help="s: quantization levels; 0 sends float32 (FedAvg).")
    ] = 1,
    bucket_size: Annotated[
        int | None, typer.Option(help="Coordinates that share a norm; default: one norm for all.")
    ] = None,
    step_size: Annotated[
        float | None, typer.Option("--step-size", "-e", help="eta; default: one that suits the problem.")
    ] = None,
    batch_size: Annotated[int, typer.Option("--batch-size", "-B", help="B: samples per step.")] = 10,
    num_clients: Annotated[int, typer.Option("--num-clients", "-n", help="n: clients in all.")] = 50,
    seed: Annotated[int, typer.Option(help="Fixes every draw of the run.")] = 0,
    ratio: Annotated[
        float, typer.Option(help="Time to upload a float32 model over time of one gradient.")
    ] = 100.0,
    bandwidth: Annotated[
        str | None, typer.Option(help="Uplink shared by the clients, e.g. 1Mbit/s; overrides --ratio.")
    ] = None,
    gradient_seconds: Annotated[
        float, typer.Option(help="Mean seconds of one sample's gradient (with --bandwidth).")
    ] = 0.001,
    accounting: Annotated[str, typer.Option(help="Bits charged: payload, fixed-width or elias.")] = "payload",
    executor: Annotated[str, typer.Option(help="auto, sequential, vectorised, dense or batched.")] = "auto",
    device: Annotated[str, typer.Option(help="cpu or cuda: where data and updates live.")] = "cpu",
    evaluate_every: Annotated[int, typer.Option(help="Rounds between evaluations; 0: only the last.")] = 1,
    compare: Annotated[bool, typer.Option(help="Also run FedAvg on the same seed.")] = True,
    data_dir: DataDir = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the history as JSON here.")
    ] = None,
    aggregation: Annotated[
        str, typer.Option(help="mean, clipped or trimmed: the last two bound liars.")
    ] = "mean",
    checkpoint: Annotated[Path | None, typer.Option(help="Save the state here after every round.")] = None,
    checkpoint_every: Annotated[int, typer.Option(help="Rounds between two saves.")] = 1,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from --checkpoint if it is there.")
    ] = False,
    log: Annotated[
        Path | None,
        typer.Option(help="Write every round to FILE.csv, FILE.jsonl or a TensorBoard FOLDER as it ends."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Train with FedPAQ and show what it cost.

    FedPAQ trains one model over n clients that keep their data. Each round the server sends its
    model to r clients drawn at random; each takes tau SGD steps on minibatches of its own data
    and uploads the *quantized* difference to the model it received; the server adds the mean of
    what arrived. Fewer uploads (tau), fewer uploaders (r) and smaller uploads (s) buy time, and
    cost accuracy: this command shows both, next to FedAvg (the same without quantization).

    Example: fedpaq run mnist-logistic --local-steps 10 --levels 1 --ratio 100

    Under torchrun the processes share each round's clients and exchange uploads:
    torchrun --nproc-per-node 2 -m fedpaq run mnist-logistic
    """
    from fedpaq import CostModel, FedPAQConfig, Identity, LowPrecision, problems
    from fedpaq.config import require_positive
    from fedpaq.hardware.ranks import join
    from fedpaq.run.log import open_log
    from fedpaq.server.aggregation import find_aggregation

    if output is not None and not output.absolute().parent.is_dir():  # told now, not after hours of training
        raise ConfigError(f"output={str(output)!r} is in no folder that exists; make it first")
    require_positive("gradient_seconds", gradient_seconds)
    cost_model = (
        CostModel.from_ratio(ratio, accounting=accounting)
        if bandwidth is None
        else CostModel(
            bandwidth=parse_bandwidth(bandwidth),
            shift=gradient_seconds / 2,
            scale=2 / gradient_seconds,
            accounting=accounting,
        )
    )
    task = problems.load(problem, num_clients=num_clients, seed=seed, data_dir=data_dir)
    config = FedPAQConfig(
        clients_per_round=clients_per_round,
        local_steps=local_steps,
        total_steps=total_steps,
        batch_size=batch_size,
        step_size=problems.suggested_step_size(problem) if step_size is None else step_size,
        seed=seed,
    )
    quantizer = LowPrecision(levels, bucket_size) if levels else Identity()
    methods: dict[str, Any] = {"FedPAQ" if levels else "FedAvg": quantizer}
    if compare and levels:
        methods["FedAvg"] = Identity()
    options: dict[str, Any] = {
        "cost_model": cost_model,
        "executor": executor,
        "evaluate_every": evaluate_every,
        "aggregation": find_aggregation(aggregation),
        "device": device,
    }
    files = {name: _checkpoint(name, checkpoint, checkpoint_every, resume, levels) for name in methods}
    advice = "" if checkpoint is None else "continue with the same command and --resume"
    with (
        join(device) as ranks,
        orderly_end(advice, ranks.reports_failure),
        nullcontext() if log is None or not ranks.is_first else open_log(log, resume=resume) as rounds,
    ):
        options["ranks"] = ranks
        histories = {
            name: _train(name, task, config, method, {**options, "checkpoint": files[name]}, json, rounds)
            for name, method in methods.items()
        }
    if not ranks.is_first:
        return
    first = next(iter(histories.values()))
    if output is not None:
        first.save(output)
    if json:
        typer.echo(
            json_module.dumps({name: _summary(history) for name, history in histories.items()}, indent=1)
        )
    else:
        _print(histories, in_seconds=bandwidth is not None)
        if ranks.size > 1:
            _print_traffic(ranks, histories)


def _checkpoint(name: str, path: Path | None, every: int, resume: bool, levels: int) -> CheckpointPolicy | None:
    """Return where the method of this name saves; the FedAvg it is compared with has a file of its own."""
    from fedpaq.run.saving import CheckpointPolicy

    if path is None:
        if resume:
            raise ConfigError("resume=True needs to know from where; add --checkpoint FILE")
        return None
    own = path.with_name(f"{path.name}.fedavg") if levels and name == "FedAvg" else path
    return CheckpointPolicy(own, every=every, resume=resume)


def _train(
    name: str,
    task: Any,
    config: Any,
    quantizer: Any,
    options: dict[str, Any],
    quiet: bool,
    rounds: RoundLog | None,
) -> History:
    from fedpaq import train

    with progress_bar(quiet or not options["ranks"].is_first) as bar:
        job = bar.add_task(name, total=config.num_rounds, note="")

        def show(record: Any, _: Any) -> None:
            note = "" if record.loss is None else f"loss {record.loss:.4f}"
            bar.update(job, completed=record.round, note=note)
            if rounds is not None:
                rounds.add(name, record)

        return train(task, config, quantizer=quantizer, callback=show, **options)


def _summary(history: History) -> dict[str, Any]:
    final = history.final
    return {
        "problem": history.problem,
        "dimension": history.dimension,
        "quantizer": history.quantizer,
        "executor": history.executor,
        "config": dict(history.config),
        "rounds": final.round,
        "loss": final.loss,
        "accuracy": final.accuracy,
        "payload_bytes": final.payload_bytes,
        "upload_bits": final.upload_bits,
        "seconds": final.seconds,
    }


def _print(histories: dict[str, History], in_seconds: bool) -> None:
    first = next(iter(histories.values()))
    r = first.config["clients_per_round"]
    console = Console()
    table = Table(
        title=f"{first.problem}: p={first.dimension}, n={first.num_clients}, r={r}, "
        f"tau={first.config['local_steps']}, T={first.config['total_steps']}, "
        f"eta={first.config['step_size']:g}",
        caption=f"executor: {first.executor}; modelled time: uploads + slowest client"
        + ("" if in_seconds else ", in gradients"),
    )
    for column in ("", "loss", "accuracy", "per upload", "uploaded", "time"):
        table.add_column(column, justify="left" if not column else "right")
    for name, history in histories.items():
        final = history.final
        per_upload = final.payload_bytes / max(1, final.round * r)
        table.add_row(
            name if history.quantizer == "none" else f"{name}, {history.quantizer.split('(')[-1].rstrip(')')}",
            f"{final.loss:.4f}",
            "-" if final.accuracy is None else f"{final.accuracy:.1%}",
            format_bytes(per_upload),
            format_bytes(final.payload_bytes),
            format_seconds(final.seconds) if in_seconds else f"{final.seconds:,.0f}",
        )
    console.print(table)
    if len(histories) == 2:
        ours, other = (history.final for history in histories.values())
        console.print(
            f"Uploads {other.payload_bytes / ours.payload_bytes:.0f} times smaller, "
            f"training {other.seconds / ours.seconds:.1f} times faster in modelled time."
        )


def _print_traffic(ranks: Ranks, histories: dict[str, History]) -> None:
    """Say what the ranks exchanged, next to what a dense sum of float32 would have been."""
    from fedpaq.hardware.ranks import dense_bytes

    first = next(iter(histories.values()))
    dense, rounds = (
        dense_bytes(4 * first.dimension, ranks.size),
        sum(each.final.round for each in histories.values()),
    )
    if ranks.traffic.payloads:
        typer.echo(
            f"{ranks.size} ranks: each received {format_bytes(ranks.traffic.payloads / rounds)} of payloads "
            f"per round; a dense all-reduce of float32 takes {format_bytes(dense)}."
        )
