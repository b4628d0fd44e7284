"""A loss on few samples that clients hold unequally, and points to look at it."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from fedpaq.problems import Partition, Problem

UNEVEN = Partition.from_lists([[0, 2], [1, 2, 3, 4]])


def make(loss=nn.functional.mse_loss, *, partition=UNEVEN, model=None, targets=None, samples=6, weight=0.3):
    generator = np.random.default_rng(11)
    inputs = generator.normal(size=(samples, 2))
    with torch.random.fork_rng():
        torch.manual_seed(2)
        model = model or nn.Linear(2, 1)
    return Problem(
        model=model,
        loss=loss,
        inputs=inputs,
        targets=(generator.random((samples, 1)) < 0.5).astype(np.float32) if targets is None else targets,
        partition=partition,
        regularization=weight,
    )


def point(seed=0, dimension=3):
    return np.random.default_rng(seed).normal(size=dimension)
