"""Sweep speed: 8 step sizes x 5 seeds of job J1 as one batch, against 40 hand-written NumPy runs.

python benchmarks/sweep.py [--repeats 7]
"""

from __future__ import annotations

import argparse
import statistics

import numpy as np

import fedpaq
from measurement import alternate, summary, write
from simulation import hand_written_numpy, rounds_of, setting

STEP_SIZES = [0.02 * 2**k for k in range(8)]
SEEDS = range(5)


def main() -> None:
    """Check that the sweep equals separate runs, time it, write benchmarks/results/sweep.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    problem, shape = setting("J1")
    configs = [
        fedpaq.FedPAQConfig(**{**shape.to_dict(), "step_size": step_size, "seed": seed})
        for step_size in STEP_SIZES
        for seed in SEEDS
    ]
    rounds = [rounds_of(problem, config) for config in configs]
    quantizer = fedpaq.LowPrecision(levels=1)

    together = fedpaq.sweep(problem, configs, quantizer=quantizer, evaluate_every=0)
    alone = [fedpaq.train(problem, config, quantizer=quantizer, evaluate_every=0) for config in configs]
    if not all(np.array_equal(a.params, b.params) for a, b in zip(together, alone, strict=True)):
        raise SystemExit("the sweep differs from separate runs")
    plain = fedpaq.sweep(problem, configs, evaluate_every=0)
    by_hand = [hand_written_numpy(problem, *pair) for pair in zip(configs, rounds, strict=True)]
    worst = max(np.abs(a.params - b).max() for a, b in zip(plain, by_hand, strict=True))
    if worst > 1e-4:
        raise SystemExit(f"the sweep without quantization differs from the NumPy loop by {worst}")

    times = alternate(
        {
            "sweep, s=1": lambda: fedpaq.sweep(problem, configs, quantizer=quantizer, evaluate_every=0),
            "40 train calls, s=1": lambda: [
                fedpaq.train(problem, config, quantizer=quantizer, evaluate_every=0) for config in configs
            ],
            "40 NumPy runs, one thread": lambda: [
                hand_written_numpy(problem, *pair) for pair in zip(configs, rounds, strict=True)
            ],
        },
        arguments.repeats,
    )
    base = statistics.median(times["40 NumPy runs, one thread"])
    rows = {}
    for name, values in times.items():
        rows[name] = {**summary(values), "over_numpy": statistics.median(values) / base}
        print(f"{name:28} {rows[name]['median_seconds']:7.3f} s   {rows[name]['over_numpy']:.2f} x NumPy runs")
    print("written:", write("sweep", {"runs": len(configs), "contenders": rows}).name)


if __name__ == "__main__":
    main()
