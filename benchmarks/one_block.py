"""One block or blocks of least error: how Rotated trains with the error spread evenly, on paired seeds.

With many blocks the error is least, but it is largest where gradients are; with ``blocks=1`` it is the same in all
coordinates. Each problem has n = 50, r = 25, tau = 2, T = 100. Bytes are those of s = 1 and s = 5.

Every quantizer is tuned alike: it takes the step size with the lowest mean loss after T steps, among nine that lie a
fourth root of two apart around the one that docs/reproduce.md has for float32, on seeds that serve for nothing else.
The seeds compared are those of no published curve.

    python benchmarks/one_block.py [--seeds 40] [--only cifar100-mlp]
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

import fedpaq
from fedpaq.experiments.judging import paired_ratio
from measurement import RESULTS, write

DATA = Path(os.environ.get("FEDPAQ_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
PROBLEMS = {  # step size, bytes of s = 1 and of s = 5, the s that Rotated with the bytes of s = 1 is compared with
    "cifar10-mlp-92k": (0.08839, (318, 1172), 10),
    "fashion-mlp": (0.1768, (287, 1045), 5),
    "cifar100-mlp": (0.125, (613, 2264), 10),
}
STEPS_BESIDE = range(-5, 4)  # of the grid of step sizes
TUNING_SEEDS, FIRST_SEED = range(150, 155), 200


def run(problem: fedpaq.Problem, text: str, pairs: list[tuple[float, int]]) -> tuple[Any, float]:
    """Return the training loss of each (step size, seed) after T steps, and the mean bytes of an upload."""
    configs = [
        fedpaq.FedPAQConfig(
            clients_per_round=25, local_steps=2, total_steps=100, batch_size=10, step_size=step_size, seed=seed
        )
        for step_size, seed in pairs
    ]
    histories = fedpaq.sweep(problem, configs, quantizer=fedpaq.quantizers.parse(text), evaluate_every=0)
    bytes_each = np.mean([history.final.payload_bytes for history in histories]) / (25 * 50)
    losses = [np.inf if history.diverged else history.final.loss for history in histories]
    return np.array(losses), float(bytes_each)


def tuned(problem: fedpaq.Problem, text: str, middle: float) -> tuple[float, dict[str, float]]:
    """Return the best step size, and the mean loss of each on the tuning seeds."""
    grid = [float(f"{middle * 2 ** (step / 4):.4g}") for step in STEPS_BESIDE]
    losses, _ = run(problem, text, [(step_size, seed) for step_size in grid for seed in TUNING_SEEDS])
    means = losses.reshape(len(grid), -1).mean(axis=1)
    return grid[int(means.argmin())], {str(at): float(f"{mean:.5g}") for at, mean in zip(grid, means, strict=True)}


def rows_of(name: str, seeds: int) -> list[dict[str, Any]]:
    """Return a row per quantizer of a problem: losses, and their ratio to the one it is compared with."""
    middle, sizes, levels = PROBLEMS[name]
    problem = fedpaq.problems.load(name, num_clients=50, seed=0, data_dir=DATA if DATA.exists() else None)
    beside = {"none": None, f"low-precision:{levels}": None}
    for size, rival in zip(sizes, (f"low-precision:{levels}", "none"), strict=True):
        beside |= {f"rotated:payload_bytes={size}": rival, f"rotated:payload_bytes={size},blocks=1": rival}
    found, rows = {}, []
    for text, rival in beside.items():
        step_size, tuning = tuned(problem, text, middle)
        pairs = [(step_size, seed) for seed in range(FIRST_SEED, FIRST_SEED + seeds)]
        losses, bytes_each = found[text] = run(problem, text, pairs)
        row = {"problem": name, "quantizer": text, "step_size": step_size, "bytes_an_upload": bytes_each}
        row |= {"seeds": seeds, "losses": [float(f"{loss:.6g}") for loss in losses], "loss": float(losses.mean())}
        if rival is not None:
            ratio = paired_ratio("", found[rival][0], losses)
            row |= {"beside": rival, "ratio": ratio.value, "low": ratio.low, "high": ratio.high}
        print({key: value for key, value in row.items() if key != "losses"}, flush=True)
        rows.append(row | {"tuning": tuning})
    return rows


def main() -> None:
    """Run the problems and write the JSON after each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--only", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
    options = parser.parse_args()
    kept = RESULTS / "one_block.json"
    rows = json.loads(kept.read_text())["rows"] if kept.exists() else []
    for name in options.only:
        rows = [row for row in rows if row["problem"] != name] + rows_of(name, options.seeds)
        rows.sort(key=lambda row: list(PROBLEMS).index(row["problem"]))
        write("one_block", {"rows": rows})


if __name__ == "__main__":
    main()
