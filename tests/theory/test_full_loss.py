"""FullLoss: weights and derivatives against sums by hand and finite differences."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedpaq.problems import Partition, iid
from fedpaq.theory import full_loss as full_losses
from fedpaq.theory.full_loss import FullLoss, weigh_clients, weigh_samples
from small_losses import UNEVEN, make, point

QUICK = settings(max_examples=40, deadline=None)


@QUICK
@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6), min_size=1, max_size=5))
def test_weights_are_the_mean_over_clients_of_the_mean_over_their_samples(lists):
    held, weights = weigh_clients(Partition.from_lists(lists))
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
    one, other = (
        weigh_clients(Partition.from_lists(lists)),
        weigh_clients(Partition.from_lists([lists[i] for i in order])),
    )
    assert np.array_equal(np.sort(one[0]), np.sort(other[0]))
    by_sample = [weights[np.argsort(held)] for held, weights in (one, other)]
    np.testing.assert_allclose(*by_sample, rtol=1e-12)


def test_weights_of_samples_are_equal_whoever_holds_them():
    held, weights = weigh_samples(Partition.from_lists([[4, 0], [1, 4, 2, 4]]))
    assert held.tolist() == [0, 1, 2, 4] and weights.tolist() == [0.25] * 4


@QUICK
@given(st.integers(1, 30), st.integers(1, 30))
def test_with_equal_clients_both_losses_are_the_same_to_the_bit(clients, samples_each):
    partition = iid(clients * samples_each, clients, seed=3)
    for one, other in zip(weigh_clients(partition), weigh_samples(partition), strict=True):
        assert one.tobytes() == other.tobytes()


def test_the_mean_over_samples_is_the_loss_that_runs_report():
    problem = make(samples=40)
    for seed in range(3):
        x = point(seed)
        reported = problem.evaluate(x).loss
        assert FullLoss(problem, mean_over="samples").value(x) == pytest.approx(reported, rel=1e-6)
        assert FullLoss(problem).value(x) != pytest.approx(reported, rel=1e-3)  # clients hold 2 and 4


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
