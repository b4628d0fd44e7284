"""What looks like a dense network and is not one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

import fedpaq


def recognised(model, loss=nn.functional.cross_entropy):
    problem = fedpaq.Problem(
        model=model, loss=loss, inputs=np.zeros((6, 4), np.float32), targets=np.zeros(6, int),
        partition=fedpaq.problems.iid(6, 2),
    )  # fmt: skip
    return problem.dense_network


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
    assert recognised(model, loss) is None


def test_a_gradient_that_a_hook_changes_is_not_that_of_the_layers_alone():
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    model[2].register_full_backward_hook(lambda module, inputs, outputs: tuple(0 * each for each in inputs))
    assert recognised(model) is None


def test_a_forward_put_on_the_instance_is_not_its_class_s():
    model = nn.Linear(4, 2)
    plain = model.forward
    model.forward = lambda inputs: 10 * plain(inputs)
    assert recognised(model) is None


def test_a_loss_that_cannot_be_hashed_is_just_another_loss():
    @dataclass
    class Focal:
        power: float = 2.0

        def __call__(self, outputs, targets):
            each = nn.functional.cross_entropy(outputs, targets, reduction="none")
            return ((1 - torch.exp(-each)) ** self.power * each).mean()

    assert recognised(nn.Linear(4, 2), Focal()) is None
