"""FullLoss and LinearModel: weights, derivatives and ranges against sums by hand and finite differences."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedpaq.problems import Partition, Problem, iid, synthetic_quadratic
from fedpaq.theory import full_loss as full_losses
from fedpaq.theory.estimators import descend, estimate, largest_curvature, largest_variance
from fedpaq.theory.full_loss import FullLoss, weigh
from fedpaq.theory.linear_model import linear_model

QUICK = settings(max_examples=40, deadline=None)
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


@QUICK
@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6), min_size=1, max_size=5))
def test_weights_are_the_mean_over_clients_of_the_mean_over_their_samples(lists):
    held, weights = weigh(Partition.from_lists(lists))
    expected = dict.fromkeys(sorted({sample for run in lists for sample in run}), 0.0)
    for run in lists:
        for sample in run:  # a sample held twice by one client counts twice
            expected[sample] += 1 / (len(lists) * len(run))
    assert dict(zip(held.tolist(), weights.tolist(), strict=True)) == pytest.approx(expected)
    assert weights.tolist() == sorted(weights.tolist()) and weights.sum() == pytest.approx(1)


@QUICK
@given(st.permutations(range(4)))
def test_the_order_of_clients_does_not_change_the_weights(order):
    lists = [[0, 1, 2], [2, 3], [4], [1, 4, 5, 6]]
    one, other = weigh(Partition.from_lists(lists)), weigh(Partition.from_lists([lists[i] for i in order]))
    assert np.array_equal(np.sort(one[0]), np.sort(other[0]))
    by_sample = [weights[np.argsort(held)] for held, weights in (one, other)]
    np.testing.assert_allclose(*by_sample, rtol=1e-12)


def value_by_hand(problem, x):
    """1/n sum_i 1/m_i sum_j (a_j . x - y_j)^2 + lambda/2 ||x||^2, one sample at a time."""
    total, n = 0.0, problem.num_clients
    for client in range(n):
        own = problem.partition.samples_of(client)
        for sample in own:
            a = np.append(problem.inputs[sample].double().numpy(), 1.0)
            total += (a @ x - float(problem.targets[sample])) ** 2 / (n * len(own))
    return total + 0.5 * problem.regularization * x @ x


def test_the_value_is_the_mean_over_clients_by_hand():
    problem = make()
    for seed in range(3):
        x = point(seed)
        assert FullLoss(problem).value(x) == pytest.approx(value_by_hand(problem, x), rel=1e-12)


def test_value_gradient_and_hessian_are_derivatives_of_one_another():
    full_loss, x, step = FullLoss(make(nn.functional.binary_cross_entropy_with_logits)), point(1), 1e-5
    value, gradient = full_loss.value_and_gradient(x)
    assert value == pytest.approx(full_loss.value(x), rel=1e-14)
    assert np.array_equal(gradient, full_loss.gradient(x))
    for axis in np.eye(3):
        # Central differences: the error is step^2 times a third derivative below 1.
        slope = (full_loss.value(x + step * axis) - full_loss.value(x - step * axis)) / (2 * step)
        assert slope == pytest.approx(axis @ gradient, abs=1e-8)
        bend = (full_loss.gradient(x + step * axis) - full_loss.gradient(x - step * axis)) / (2 * step)
        np.testing.assert_allclose(full_loss.hessian_product(x, axis), bend, atol=1e-8)


def test_hessian_products_are_linear_and_symmetric():
    full_loss, x = FullLoss(make(nn.functional.binary_cross_entropy_with_logits)), point(2)
    u, v = point(3), point(4)
    by_parts = 2 * full_loss.hessian_product(x, u) - 3 * full_loss.hessian_product(x, v)
    np.testing.assert_allclose(full_loss.hessian_product(x, 2 * u - 3 * v), by_parts, rtol=1e-10)
    assert v @ full_loss.hessian_product(x, u) == pytest.approx(u @ full_loss.hessian_product(x, v), rel=1e-10)


def test_gradients_of_samples_average_to_the_gradient():
    full_loss, x = FullLoss(make()), point(5)
    blocks = list(full_loss.sample_gradients(x, np.arange(full_loss.num_samples)))
    np.testing.assert_allclose(full_loss.weights @ np.concatenate(blocks), full_loss.gradient(x), rtol=1e-10)


def test_squared_gradients_of_many_points_are_those_of_each():
    full_loss = FullLoss(make())
    points = np.stack([point(seed) for seed in range(4)])
    expected = [full_loss.gradient(x) @ full_loss.gradient(x) for x in points]
    np.testing.assert_allclose(full_loss.squared_gradients(points), expected, rtol=1e-10)


def test_how_samples_are_cut_into_passes_does_not_matter(monkeypatch):
    problem = make(partition=iid(6, 2, seed=1))
    whole, x = FullLoss(problem), point(6)
    expected = whole.value(x), whole.gradient(x), list(whole.sample_gradients(x, np.arange(6)))
    monkeypatch.setattr(full_losses, "ROWS", 2)
    monkeypatch.setattr(full_losses, "GRADIENT_BYTES", 8 * 3 * 4)
    cut = FullLoss(problem)
    assert cut.value(x) == pytest.approx(expected[0], rel=1e-14)
    np.testing.assert_allclose(cut.gradient(x), expected[1], rtol=1e-12)
    blocks = list(cut.sample_gradients(x, np.arange(6)))
    assert [len(block) for block in blocks] == [4, 2]
    np.testing.assert_allclose(np.concatenate(blocks), expected[2][0], rtol=1e-12)


def test_samples_that_nobody_holds_do_not_count():
    problem = make(samples=40, partition=UNEVEN)
    full_loss = FullLoss(problem)
    assert full_loss.num_samples == 5 and len(full_loss.outputs(point())) == 5
    assert full_loss.value(point()) == pytest.approx(value_by_hand(problem, point()), rel=1e-12)


def test_targets_that_are_labels_stay_whole_numbers():
    labels = np.array([0, 1, 2, 0, 1, 2])
    full_loss = FullLoss(make(nn.functional.cross_entropy, model=nn.Linear(2, 3), targets=labels))
    assert full_loss.targets.dtype == torch.int64
    assert math.isfinite(full_loss.value(point(0, 9)))


def gram_by_hand(problem):
    rows = np.c_[problem.inputs.double().numpy(), np.ones(len(problem.inputs))]
    held, weights = weigh(problem.partition)
    return sum(
        weight * np.outer(rows[sample], rows[sample]) for sample, weight in zip(held, weights, strict=True)
    )


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
    "targets of many values": make(
        targets=np.arange(40, dtype=np.float32)[:, None], samples=40, partition=iid(40, 2)
    ),
}


@pytest.mark.parametrize("problem", NOT_LINEAR.values(), ids=NOT_LINEAR)
def test_what_is_no_linear_model_is_none(problem):
    assert linear_model(FullLoss(problem)) is None


def test_the_curvature_of_a_quadratic_is_its_largest_eigenvalue():
    problem = synthetic_quadratic(num_clients=2, dimension=70, strong_convexity=0.5, smoothness=6.0)
    full_loss, x = FullLoss(problem), point(0, 70)
    assert largest_curvature(full_loss, x) == pytest.approx(6.0, rel=1e-3)
    assert 6.0 - largest_curvature(full_loss, x, flipped_at=6.0) == pytest.approx(0.5, abs=6e-3)


def test_a_descent_ends_at_the_known_optimum_or_where_the_loss_is_enough():
    problem = synthetic_quadratic(num_clients=2, dimension=5)
    full_loss, start = FullLoss(problem), point(1, 5)
    np.testing.assert_allclose(descend(full_loss, start), problem.known.optimum, atol=1e-5)
    half = 0.5 * (full_loss.value(start) + problem.known.minimum)
    stopped = full_loss.value(descend(full_loss, start, enough=half))
    assert problem.known.minimum < stopped <= half


def test_the_largest_variance_is_that_of_the_worst_point():
    problem = synthetic_quadratic(num_clients=2, dimension=4)
    full_loss = FullLoss(problem)
    same = largest_variance(full_loss, [point(0, 4), point(1, 4)])
    assert same.value == pytest.approx(problem.known.gradient_variance, rel=1e-5)  # the same at every x
    assert same.certainty == "local" and same.source == "largest of 2 points" and same.error == 0.0


def test_estimates_become_the_assumptions_of_the_theorems():
    found = estimate(synthetic_quadratic(num_clients=3, dimension=4))
    known = found.assumptions(variance_bound=0.75)
    assert (known.smoothness, known.strong_convexity, known.variance_bound) == (4.0, 1.0, 0.75)
    assert known.gradient_variance == found.gradient_variance.value
    flat = estimate(make(nn.functional.binary_cross_entropy_with_logits, weight=0.0))
    assert flat.strong_convexity is None and flat.assumptions().strong_convexity is None
    assert flat.optimum is None and flat.initial_error is None and flat.initial_gap.certainty == "bound"
