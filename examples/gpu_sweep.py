"""Tune the step size on a GPU: all step sizes and seeds run as one batch.

python examples/gpu_sweep.py [--total-steps 100] [--device cuda]
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

import fedpaq

STEP_SIZES = [0.02 * 2**k for k in range(7)]
SEEDS = range(3)


def main(total_steps: int, device: str) -> None:
    """Print the mean final loss of each step size."""
    if device == "cuda" and not torch.cuda.is_available():
        print("torch finds no CUDA device: running the same sweep on the CPU")
        device = "cpu"
    problem = fedpaq.problems.load("mnist-logistic", num_clients=50)
    configs = [
        fedpaq.FedPAQConfig(
            clients_per_round=25, local_steps=5, total_steps=total_steps, step_size=step_size, seed=seed
        )
        for step_size in STEP_SIZES
        for seed in SEEDS
    ]
    start = time.perf_counter()
    histories = fedpaq.sweep(problem, configs, quantizer=fedpaq.LowPrecision(levels=1), evaluate_every=0, device=device)
    seconds = time.perf_counter() - start
    losses = np.array([np.inf if run.diverged else run.final.loss for run in histories])
    for step_size, mean in zip(STEP_SIZES, losses.reshape(-1, len(SEEDS)).mean(axis=1), strict=True):
        print(f"step_size={step_size:<5g} mean loss {mean:.4f}")
    print(f"{len(configs)} runs in {seconds:.2f} s on {device}, with the {histories[0].executor} executor")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--total-steps", type=int, default=100)
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    main(arguments.total_steps, arguments.device)
