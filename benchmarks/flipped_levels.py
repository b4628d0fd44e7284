"""How often float rounding in another executor flips a quantized level.

Two executors do the same local work and differ in the last bits of the updates. A level flips where that
difference crosses its dither threshold. Counted over real updates of the 92,027-parameter network (CIFAR-10)
and of MNIST logistic regression, against the sequential twin.

    python benchmarks/flipped_levels.py [--rounds 8]
"""

from __future__ import annotations

import argparse

import numpy as np

import fedpaq
from fedpaq.clients import Dense, Sequential, Vectorised, draw_participants, local_work
from fedpaq.quantizers.update import as_float32
from measurement import write

LEVELS = (1, 10, 64)


def count(problem: fedpaq.Problem, local_steps: int, rounds: int) -> list[dict[str, float]]:
    """Return flipped levels and coordinates for each executor and number of levels."""
    config = fedpaq.FedPAQConfig(
        clients_per_round=25, local_steps=local_steps, total_steps=local_steps * rounds, step_size=0.05
    )
    executors = [Vectorised(), Dense()]
    flips = {(executor.name, levels): 0 for executor in executors for levels in LEVELS}
    coordinates = 0
    for k in range(rounds):
        participants = draw_participants(problem, [config], k)
        (work,) = local_work(problem, [config], k, problem.initial_params[None], participants)
        reference = as_float32(Sequential().local_updates(problem, work))
        coordinates += reference.size
        for executor in executors:
            updates = as_float32(executor.local_updates(problem, work))
            for levels in LEVELS:
                quantizer = fedpaq.LowPrecision(levels)
                ours = quantizer.quantize_batch(updates, work.keys()).signed_levels
                twin = quantizer.quantize_batch(reference, work.keys()).signed_levels
                flips[executor.name, levels] += int(np.count_nonzero(ours != twin))
    return [
        {
            "problem": problem.name,
            "executor": name,
            "levels": levels,
            "flipped": flipped,
            "coordinates": coordinates,
            "share": flipped / coordinates,
        }
        for (name, levels), flipped in flips.items()
    ]


def main() -> None:
    """Count, print, write benchmarks/results/flipped_levels.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    rounds = parser.parse_args().rounds
    rows = [
        *count(fedpaq.problems.load("cifar10-mlp-92k"), 2, rounds),
        *count(fedpaq.problems.load("mnist-logistic"), 5, 10 * rounds),
    ]
    for row in rows:
        print(
            f"{row['problem']:16} {row['executor']:11} s={row['levels']:<3} {row['flipped']:5} of "
            f"{row['coordinates']:,} levels differ from the sequential twin ({row['share']:.1e})"
        )
    print("written:", write("flipped_levels", {"rows": rows}).name)


if __name__ == "__main__":
    main()
