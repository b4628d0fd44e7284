"""Two problems whose clients share one loss: a quadratic, and one that is not convex."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from fedpaq.problems import Partition, Problem, synthetic_logistic, synthetic_quadratic


@pytest.fixture(scope="module")
def quadratic():
    return synthetic_quadratic(num_clients=4, samples_per_client=5, dimension=5, smoothness=2.0)


def squared_sigmoid(outputs, targets):
    return functional.mse_loss(torch.sigmoid(outputs), targets)


@pytest.fixture(scope="module")
def non_convex():
    source = synthetic_logistic(num_clients=1, samples_per_client=40, dimension=4, seed=3)
    partition = Partition.from_lists([np.arange(40)] * 4)
    return Problem(
        model=source.model,
        loss=squared_sigmoid,
        inputs=source.inputs,
        targets=source.targets,
        partition=partition,
        name="sigmoid",
    )
