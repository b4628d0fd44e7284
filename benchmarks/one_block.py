"""One block or blocks of least error: how Rotated trains with the error spread evenly, on paired seeds.

With many blocks the error is least, but it is largest where gradients are; with ``blocks=1`` it is the same in all
coordinates. Each problem has n = 50, r = 25, tau = 2, T = 100 and one step size for all quantizers, the one that
docs/reproduce.md has for float32. Bytes are those of s = 1 and s = 5. The seeds are those of no published curve.

    python benchmarks/one_block.py [--seeds 10] [--large-seeds 5]
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import numpy as np

import fedpaq
from fedpaq.experiments.judging import paired_ratio
from measurement import write

DATA = Path(os.environ.get("FEDPAQ_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
PROBLEMS = {  # step size, bytes of s = 1 and of s = 5, the s that Rotated with the bytes of s = 1 is compared with
    "cifar10-mlp-92k": (0.08839, (318, 1172), 10),
    "fashion-mlp": (0.1768, (287, 1045), 5),
    "cifar100-mlp": (0.125, (613, 2264), 10),
}
FIRST_SEED = 200


def final_losses(problem: fedpaq.Problem, text: str, step_size: float, seeds: int) -> tuple[Any, float]:
    """Return each seed's training loss after T steps and the mean bytes of an upload."""
    configs = [
        fedpaq.FedPAQConfig(
            clients_per_round=25, local_steps=2, total_steps=100, batch_size=10, step_size=step_size, seed=seed
        )
        for seed in range(FIRST_SEED, FIRST_SEED + seeds)
    ]
    histories = fedpaq.sweep(problem, configs, quantizer=fedpaq.quantizers.parse(text), evaluate_every=0)
    bytes_each = np.mean([history.final.payload_bytes for history in histories]) / (25 * 50)
    return np.array([history.final.loss for history in histories]), float(bytes_each)


def rows_of(name: str, seeds: int) -> list[dict[str, Any]]:
    """Return a row per quantizer of a problem: losses, and their ratio to the one it is compared with."""
    step_size, sizes, levels = PROBLEMS[name]
    problem = fedpaq.problems.load(name, num_clients=50, seed=0, data_dir=DATA if DATA.exists() else None)
    beside = {"none": None, f"low-precision:{levels}": None}
    for size, rival in zip(sizes, (f"low-precision:{levels}", "none"), strict=True):
        beside |= {f"rotated:payload_bytes={size}": rival, f"rotated:payload_bytes={size},blocks=1": rival}
    found, rows = {}, []
    for text, rival in beside.items():
        losses, bytes_each = found[text] = final_losses(problem, text, step_size, seeds)
        row = {"problem": name, "quantizer": text, "step_size": step_size, "bytes_an_upload": bytes_each}
        row |= {"seeds": seeds, "losses": [float(f"{loss:.6g}") for loss in losses], "loss": float(losses.mean())}
        if rival is not None:
            ratio = paired_ratio("", found[rival][0], losses)
            row |= {"beside": rival, "ratio": ratio.value, "low": ratio.low, "high": ratio.high}
        print({key: value for key, value in row.items() if key != "losses"}, flush=True)
        rows.append(row)
    return rows


def main() -> None:
    """Run all problems and write the JSON after each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--large-seeds", type=int, default=5, help="of CIFAR-100, which takes longer")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name in PROBLEMS:
        rows += rows_of(name, options.large_seeds if name == "cifar100-mlp" else options.seeds)
        write("one_block", {"rows": rows})


if __name__ == "__main__":
    main()
