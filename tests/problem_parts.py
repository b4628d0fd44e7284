"""A small network, its data and a problem made of them."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from fedpaq.problems import Problem, iid

N, FEATURES, LABELS = 60, 6, 4


def data(num_samples: int = N) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    inputs = generator.standard_normal((num_samples, FEATURES)).astype(np.float32)
    return inputs, generator.integers(0, LABELS, num_samples)


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.ReLU(), nn.Linear(5, LABELS))


def make(**changes) -> Problem:
    inputs, targets = data()
    arguments = {
        "model": network(),
        "loss": nn.functional.cross_entropy,
        "inputs": inputs,
        "targets": targets,
        "partition": iid(N, 6),
    }
    return Problem(**{**arguments, **changes})
