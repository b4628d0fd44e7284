"""Robust aggregation: what 10 % of lying clients do to the mean, to clipping and to trimming.

MNIST 0/8 logistic regression, n=50 of which 5 lie in every round they take part in, r=25, tau=5,
T=100, five seeds. A liar multiplies its true update by a factor before it quantizes and sends it:
perfectly valid payloads, so no decoder can tell.

    python benchmarks/robust_aggregation.py
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import fedpaq
from fedpaq.clients import LocalWork, choose_executor
from fedpaq.server.aggregation import Aggregation, ClippedMean, Mean, TrimmedMean
from measurement import write

ATTACKS = {"none": 1.0, "times 100": 100.0, "times -1": -1.0, "times -10": -10.0, "times -100": -100.0}
SERVERS: tuple[Aggregation, ...] = (Mean(), ClippedMean(), TrimmedMean(trim=0.2))
QUANTIZERS = (fedpaq.LowPrecision(levels=1), fedpaq.LowPrecision(levels=64), fedpaq.Identity())
SEEDS = range(5)


@dataclass(frozen=True)
class Hostile:
    """An executor some of whose clients multiply their updates by ``factor``."""

    honest: Any
    factor: float
    liars: int = 5
    name: str = "hostile"

    def local_updates(self, problem: fedpaq.Problem, work: LocalWork) -> Any:
        """Return the updates, those of clients 0..liars-1 altered: (jobs, p)."""
        updates = np.asarray(self.honest.local_updates(problem, work))
        updates[work.clients < self.liars] *= np.float32(self.factor)
        return updates


def final_losses(
    problem: fedpaq.Problem, quantizer: Any, server: Aggregation, attack: float, config: fedpaq.FedPAQConfig
) -> list[float]:
    """Return each seed's final training loss; infinity where the run diverged."""
    hostile = Hostile(choose_executor("auto", problem), attack)
    configs = [replace(config, seed=seed) for seed in SEEDS]
    histories = fedpaq.sweep(
        problem, configs, quantizer=quantizer, executor=hostile, aggregation=server, evaluate_every=0
    )
    return [float("inf") if h.diverged or h.final.loss is None else h.final.loss for h in histories]


def main() -> None:
    """Run every attack on every server, print the table and write the JSON."""
    problem = fedpaq.problems.load("mnist-logistic", num_clients=50, seed=0)
    config = fedpaq.FedPAQConfig(clients_per_round=25, local_steps=5, total_steps=100, step_size=0.5)
    rows = []
    print(f"{'quantizer':20} {'server':28}" + "".join(f"{name:>12}" for name in ATTACKS))
    for quantizer in QUANTIZERS:
        for server in SERVERS:
            losses = {
                name: final_losses(problem, quantizer, server, factor, config) for name, factor in ATTACKS.items()
            }
            rows.append({"quantizer": quantizer.name, "server": server.name, "losses": losses})
            medians = [statistics.median(values) for values in losses.values()]
            print(f"{quantizer.name:20} {server.name:28}" + "".join(f"{value:12.4f}" for value in medians))
    write("robust_aggregation", {"liars": 5, "clients": 50, "rows": rows})


if __name__ == "__main__":
    main()
