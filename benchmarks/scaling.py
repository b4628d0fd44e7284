"""Scaling: what a round costs against the number of clients n, participants r, parameters p, and ranks.

Checks first that the results do not depend on what is varied, then times whole rounds (draw, local work,
quantization with s=1, encoding, averaging); the loss is not evaluated.

    python benchmarks/scaling.py [--only clients participants parameters ranks] [--repeats 7]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import fedpaq
from fedpaq.hardware.ranks import dense_bytes, join
from measurement import RESULTS, alternate, summary, write

ROUNDS = 20
CLIENTS = (1_000, 10_000, 100_000, 1_000_000)
PARTICIPANTS = (10, 100, 1_000, 10_000)
WIDTHS = (10, 100, 1_000, 10_000, 100_000)  # inputs of a logistic regression: p is one more
RANKS = (1, 2, 4)
QUANTIZER = fedpaq.LowPrecision(levels=1)


def config_of(clients_per_round: int, rounds: int = ROUNDS) -> fedpaq.FedPAQConfig:
    """Return tau = 5, B = 10."""
    return fedpaq.FedPAQConfig(
        clients_per_round=clients_per_round, local_steps=5, total_steps=5 * rounds, step_size=0.1
    )


def rounds(problem: fedpaq.Problem, config: fedpaq.FedPAQConfig) -> fedpaq.History:
    """Train; one evaluation at the end, of few samples."""
    return fedpaq.train(problem, config, quantizer=QUANTIZER, evaluate_every=0)


def logistic(num_clients: int, partition: str) -> fedpaq.Problem:
    """Return synthetic logistic regression (p = 10), evaluated on 1,000 samples."""
    problem = fedpaq.problems.load("synthetic-logistic", num_clients=num_clients, samples_per_client=2)
    if partition == "dirichlet":
        labels = problem.targets.numpy()[:, 0]
        shared = fedpaq.problems.dirichlet(labels, num_clients, alpha=0.5)
        problem = fedpaq.Problem(
            model=problem.model,
            loss=problem.loss,
            inputs=problem.inputs,
            targets=problem.targets,
            partition=shared,
            regularization=problem.regularization,
        )
    return problem.evaluated_on(np.arange(1_000))


def bytes_held(problem: fedpaq.Problem) -> dict[str, int]:
    """Return the bytes of the data and of the partition."""
    partition = problem.partition
    return {
        "data_bytes": problem.inputs.nbytes + problem.targets.nbytes,
        "partition_bytes": partition.indices.nbytes + partition.offsets.nbytes,
    }


def bytes_beyond(problem: fedpaq.Problem, config: fedpaq.FedPAQConfig) -> int:
    """Return the most bytes NumPy and Python held at once in some rounds, on top of what was there before."""
    rounds(problem, config)
    tracemalloc.start()
    rounds(problem, config)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


def per_round(times: list[float], count: int = ROUNDS) -> dict[str, Any]:
    """Return median and range of the seconds of one round."""
    return summary([seconds / count for seconds in times])


def against_clients(repeats: int) -> dict[str, Any]:
    """r = 100 of 1,000 to 1,000,000 clients, dealt evenly and by a Dirichlet law; then r = 1,000 of 10^6."""
    settings = {f"{kind}, n={n}": (kind, n) for kind in ("iid", "dirichlet") for n in CLIENTS}
    problems = {name: logistic(n, kind) for name, (kind, n) in settings.items()}
    config = config_of(100)
    contenders = {name: partial(rounds, problem, config) for name, problem in problems.items()}
    times = alternate(contenders, repeats)
    rows: dict[str, Any] = {}
    for name, (kind, _) in settings.items():
        base = statistics.median(times[f"{kind}, n={CLIENTS[0]}"])
        rows[name] = {
            **per_round(times[name]),
            "over_fewest": statistics.median(times[name]) / base,
            "bytes_beyond_data_and_partition": bytes_beyond(problems[name], config),
            **bytes_held(problems[name]),
        }
        print(
            f"{name:24} {1e3 * rows[name]['median_seconds']:8.2f} ms a round, {rows[name]['over_fewest']:.2f} "
            f"of n={CLIENTS[0]}; {rows[name]['bytes_beyond_data_and_partition'] / 1e6:.2f} MB beyond the data"
        )
    million, many = problems[f"iid, n={CLIENTS[-1]}"], config_of(1_000)
    rows["iid, n=1000000, r=1000"] = {
        **per_round(alternate({"": partial(rounds, million, many)}, repeats)[""]),
        "bytes_beyond_data_and_partition": bytes_beyond(million, many),
        **bytes_held(million),
    }
    print(f"a million clients, r=1000: {1e3 * rows['iid, n=1000000, r=1000']['median_seconds']:.1f} ms a round")
    return rows


def against_participants(repeats: int) -> dict[str, Any]:
    """r = 10 to 10,000 of 10,000 clients."""
    problem = logistic(10_000, "iid")
    contenders = {str(r): partial(rounds, problem, config_of(r, 5)) for r in PARTICIPANTS}
    times = alternate(contenders, repeats)
    rows = {r: {**per_round(values, 5), "per": int(r)} for r, values in times.items()}
    return report("r", "participant", rows)


def against_parameters(repeats: int) -> dict[str, Any]:
    """p = 11 to 100,001, r = 10."""
    contenders = {str(width + 1): partial(rounds, wide_logistic(width), config_of(10, 5)) for width in WIDTHS}
    times = alternate(contenders, repeats)
    rows = {p: {**per_round(values, 5), "per": int(p)} for p, values in times.items()}
    return report("p", "parameter", rows)


def report(symbol: str, unit: str, rows: dict[str, Any]) -> dict[str, Any]:
    """Print rows, add the cost of one more unit between neighbours, and return them."""
    before: dict[str, Any] | None = None
    for name, row in rows.items():
        if before is not None:
            more = row["median_seconds"] - before["median_seconds"]
            row["marginal_seconds"] = more / (row["per"] - before["per"])
        extra = f"   {1e6 * row['marginal_seconds']:8.3f} us a {unit} more" if before else ""
        print(f"{symbol}={name:10} {1e3 * row['median_seconds']:9.3f} ms a round{extra}")
        before = row
    return rows


def wide_logistic(width: int) -> fedpaq.Problem:
    """Return logistic regression with this many inputs, 100 random samples for 10 clients."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(100, width, generator=generator)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Linear(width, 1)
    return fedpaq.Problem(
        model=model,
        loss=nn.functional.binary_cross_entropy_with_logits,
        inputs=inputs,
        targets=(inputs[:, :1] > 0).float(),
        partition=fedpaq.problems.iid(100, 10),
    )


def network() -> fedpaq.Problem:
    """Return the 92,027-parameter network on random data, ten samples for each of 100 clients."""
    from fedpaq.problems.relu_network import relu_network

    generator = torch.Generator().manual_seed(0)
    return fedpaq.Problem(
        model=relu_network((3072, 29, 29, 29, 29, 10), seed=0),
        loss=nn.functional.cross_entropy,
        inputs=torch.randn(1_000, 3072, generator=generator),
        targets=torch.randint(0, 10, (1_000,), generator=generator),
        partition=fedpaq.problems.iid(1_000, 100),
    )


def one_rank(folder: Path, repeats: int) -> None:
    """Train as one of several ranks; the first writes params, seconds and bytes."""
    with join() as ranks:
        problem, config = network(), config_of(40, 10)

        def job() -> fedpaq.History:
            return fedpaq.train(problem, config, quantizer=QUANTIZER, evaluate_every=0, ranks=ranks)

        history, received = job(), ranks.traffic.payloads
        times = alternate({"": job}, repeats)[""]
        if ranks.is_first:
            np.save(folder / f"{ranks.size}.npy", history.params)
            row = {**per_round(times, 10), "payload_bytes_received_a_round": received / 10}
            (folder / f"{ranks.size}.json").write_text(json.dumps(row))


def against_ranks(repeats: int) -> dict[str, Any]:
    """1, 2 and 4 ranks on this machine: r = 40 clients of the 92,027-parameter network, tau = 5."""
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for size in RANKS:
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
            command += ["--nproc-per-node", str(size), __file__, "--repeats", str(repeats), "--rank", name]
            threads = str(max(1, (os.cpu_count() or 1) // size))
            subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": threads})
            if not np.array_equal(np.load(folder / f"{size}.npy"), np.load(folder / "1.npy")):
                raise SystemExit(f"{size} ranks end in other params than one")
            rows[str(size)] = json.loads((folder / f"{size}.json").read_text())
            rows[str(size)]["dense_all_reduce_bytes_a_round"] = dense_bytes(4 * 92_027, size)
            rows[str(size)]["dense_updates_bytes_a_round"] = 4 * 92_027 * 40 * (size - 1) // size
            row = rows[str(size)]
            print(
                f"ranks={size}: {1e3 * row['median_seconds']:8.2f} ms a round, "
                f"{row['payload_bytes_received_a_round'] / 1e3:.2f} kB of payloads received by each, "
                f"dense all-reduce {row['dense_all_reduce_bytes_a_round'] / 1e3:.0f} kB"
            )
    return rows


def check() -> None:
    """Raise SystemExit unless the work of a round is the same however it is cut."""
    problem = logistic(1_000, "dirichlet")
    runs = [rounds(problem, config_of(50, 5)).params for _ in range(2)]
    together = fedpaq.sweep(problem, [config_of(50, 5)] * 2, quantizer=QUANTIZER, evaluate_every=0)
    if not all(np.array_equal(runs[0], params) for params in (runs[1], *(run.params for run in together))):
        raise SystemExit("a round's result depends on how it is run")


SECTIONS = {
    "clients": against_clients,
    "participants": against_participants,
    "parameters": against_parameters,
    "ranks": against_ranks,
}


def main() -> None:
    """Run the sections asked for and write benchmarks/results/scaling.json; others are kept as they were."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--rank", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        one_rank(arguments.rank, arguments.repeats)
        return
    check()
    path = RESULTS / "scaling.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    results.pop("machine", None)
    for name in arguments.only:
        results[name] = SECTIONS[name](arguments.repeats)
    print("written:", write("scaling", results).name)


if __name__ == "__main__":
    main()
