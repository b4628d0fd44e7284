"""Small problems of three kinds, the same at every call."""

from __future__ import annotations

import torch
from torch import nn

import fedpaq


def make_problem(kind: str, num_clients: int = 8, samples: int = 160, partition=None) -> fedpaq.Problem:
    """Return a small problem of one of three kinds, the same at every call."""
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(samples, 1, 6, 6, generator=generator)
    labels = torch.randint(0, 3, (samples,), generator=generator)
    inputs[:, 0, 0, 0] += labels.float()
    partition = partition or fedpaq.problems.iid(samples, num_clients, seed=1)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        if kind == "logistic":
            return fedpaq.Problem(
                model=nn.Linear(36, 1),
                loss=nn.functional.binary_cross_entropy_with_logits,
                inputs=inputs.flatten(1),
                targets=(labels > 0).float()[:, None],
                partition=partition,
                regularization=0.01,
            )
        if kind == "mlp":
            model = nn.Sequential(nn.Linear(36, 12), nn.ReLU(), nn.Linear(12, 7), nn.ReLU(), nn.Linear(7, 3))
            return fedpaq.Problem(
                model=model,
                loss=nn.functional.cross_entropy,
                inputs=inputs.flatten(1),
                targets=labels,
                partition=partition,
            )
        model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3))
        return fedpaq.Problem(
            model=model, loss=nn.functional.cross_entropy, inputs=inputs, targets=labels, partition=partition
        )
