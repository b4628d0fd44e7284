"""LinearModel: ranges and spectrum against textbooks and sums by hand, and what is not one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from torch import nn

from fedpaq.problems import iid
from fedpaq.theory import estimate
from fedpaq.theory.full_loss import FullLoss, weigh_clients
from fedpaq.theory.linear_model import linear_model
from small_losses import make


def gram_by_hand(problem):
    rows = np.c_[problem.inputs.double().numpy(), np.ones(len(problem.inputs))]
    held, weights = weigh_clients(problem.partition)
    return sum(weight * np.outer(rows[sample], rows[sample]) for sample, weight in zip(held, weights, strict=True))


def test_a_logistic_model_has_its_textbook_ranges():
    problem = make(nn.functional.binary_cross_entropy_with_logits)
    found = linear_model(FullLoss(problem))
    assert found.curvature[0] == pytest.approx(0, abs=1e-12) and found.curvature[1] == pytest.approx(1 / 4)
    assert found.slope == pytest.approx(1) and found.floor == pytest.approx(0, abs=1e-12)
    gram = gram_by_hand(problem)
    assert found.mean_square == pytest.approx(np.trace(gram))
    np.testing.assert_allclose(found.spectrum, np.linalg.eigvalsh(gram)[[0, -1]], rtol=1e-9)


def test_least_squares_have_one_curvature_and_slopes_without_end():
    found = linear_model(FullLoss(make()))
    assert found.curvature == pytest.approx((2.0, 2.0)) and found.slope == math.inf
    assert found.floor == pytest.approx(0, abs=1e-4)  # labels 0 and 1 lie on the grid


MANY = {"targets": np.arange(40, dtype=np.float32)[:, None] ** 1.5, "samples": 40, "partition": iid(40, 2)}


def test_least_squares_with_a_target_of_its_own_for_every_sample_are_linear_too():
    problem = make(**MANY)
    found = linear_model(FullLoss(problem))
    assert found.curvature == pytest.approx((2.0, 2.0)) and found.slope == math.inf
    assert found.floor == pytest.approx(0, abs=1e-8)  # every target can be met on its own
    np.testing.assert_allclose(found.spectrum, np.linalg.eigvalsh(gram_by_hand(problem))[[0, -1]], rtol=1e-9)
    estimates = estimate(problem)
    assert estimates.smoothness.certainty == estimates.strong_convexity.certainty == "exact"
    assert estimates.smoothness.value == pytest.approx(2 * found.spectrum[1] + 0.3)


class Cubed(nn.Module):
    """One output that is not affine in its parameters."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, inputs):
        return self.layer(inputs) ** 3


NOT_LINEAR = {
    "a network": make(model=nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))),
    "a power": make(model=Cubed()),
    "two outputs": make(model=nn.Linear(2, 2), targets=np.zeros((6, 2), np.float32)),
    "targets of many values": make(nn.functional.smooth_l1_loss, **MANY),
}


@pytest.mark.parametrize("problem", NOT_LINEAR.values(), ids=NOT_LINEAR)
def test_what_is_no_linear_model_is_none(problem):
    assert linear_model(FullLoss(problem)) is None
