"""What looks like a dense network and is not one."""

from __future__ import annotations

import numpy as np
import pytest
from torch import nn

import fedpaq


@pytest.mark.parametrize(
    ("model", "loss"),
    [
        (nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)), nn.CrossEntropyLoss()),
        (nn.Sequential(nn.Linear(4, 2), nn.ReLU()), nn.CrossEntropyLoss()),
        (nn.Linear(4, 2, bias=False), nn.CrossEntropyLoss()),
        (nn.Linear(4, 2), nn.CrossEntropyLoss(label_smoothing=0.1)),
        (nn.Linear(4, 2), lambda outputs, targets: 2 * nn.functional.cross_entropy(outputs, targets)),
    ],
)
def test_models_and_losses_that_differ_are_not_taken_for_dense_networks(model, loss):
    problem = fedpaq.Problem(
        model=model, loss=loss, inputs=np.zeros((6, 4), np.float32), targets=np.zeros(6, int),
        partition=fedpaq.problems.iid(6, 2),
    )  # fmt: skip
    assert problem.dense_network is None
