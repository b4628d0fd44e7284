"""Soak: many rounds with checkpoints; memory and file descriptors must stay flat.

    python tests/faults/soak.py --rounds 2000 --first 200 --write

Memory is the process's resident set, averaged over the fifty rounds that end at each mark: the
one figure that also shows leaks of kernels and libraries.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import fedpaq
from fedpaq.run.saving import CheckpointPolicy

RESULT = Path(__file__).parent / "results" / "soak.json"
PAGE = os.sysconf("SC_PAGE_SIZE")
AVERAGED = 50


def resident_bytes() -> int:
    """Return the resident set of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def soak(rounds: int, first: int, problem: fedpaq.Problem) -> dict[str, Any]:
    """Train ``rounds`` rounds and compare round ``first`` with the last."""
    memory: list[int] = []
    descriptors: list[int] = []

    def watch(record: fedpaq.History, params: Any) -> None:
        memory.append(resident_bytes())
        descriptors.append(len(os.listdir("/proc/self/fd")))

    config = fedpaq.FedPAQConfig(clients_per_round=10, local_steps=2, total_steps=2 * rounds, step_size=0.1)
    with tempfile.TemporaryDirectory() as folder:
        fedpaq.train(
            problem,
            config,
            quantizer=fedpaq.LowPrecision(levels=1),
            checkpoint=CheckpointPolicy(Path(folder) / "run.ckpt", every=10),
            evaluate_every=10,
            callback=watch,
        )
    marks = [sum(memory[at - AVERAGED : at]) / AVERAGED for at in (first, rounds)]
    return {
        "problem": problem.name,
        "rounds": rounds,
        "first": first,
        "resident_megabytes": [round(mark / 1e6, 2) for mark in marks],
        "growth_percent": round(100 * (marks[1] / marks[0] - 1), 3),
        "descriptors": [descriptors[first], descriptors[-1]],
    }


def main() -> None:
    """Soak, report, and fail if anything grew."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--first", type=int, default=200)
    parser.add_argument("--problem", default="mnist-logistic")
    parser.add_argument("--write", action="store_true", help=f"record the result in {RESULT.name}")
    options = parser.parse_args()
    problem = fedpaq.problems.load(options.problem, num_clients=50, seed=0)
    result = soak(options.rounds, options.first, problem)
    print(json.dumps(result, indent=1))
    if result["growth_percent"] >= 1.0 or result["descriptors"][0] != result["descriptors"][1]:
        raise SystemExit("memory or file descriptors grow with the rounds")
    if options.write:
        RESULT.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
