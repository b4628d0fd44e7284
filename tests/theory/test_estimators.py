"""Estimators of L, mu, sigma^2, the gap and the optimum, against closed forms and brute force."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedpaq.errors import ConfigError
from fedpaq.problems import ExactConstants, Partition, Problem, iid, synthetic_quadratic
from fedpaq.theory import estimate
from fedpaq.theory.estimators import MOST_SAMPLES, descend, extreme_curvatures, largest_curvature, largest_variance
from fedpaq.theory.full_loss import FullLoss
from small_losses import make, point
from small_problems import make_problem

GENERATOR = np.random.default_rng(7)
INPUTS = GENERATOR.normal(size=(60, 3)).astype(np.float32)
LABELS = (INPUTS @ np.array([1.0, -2.0, 0.5]) + GENERATOR.normal(size=60) > 0).astype(np.float32)
DESIGN = np.column_stack([INPUTS, np.ones(60)]).astype(np.float64)  # weights, then the bias


def logistic_loss(outputs, targets):
    return functional.binary_cross_entropy_with_logits(outputs.squeeze(-1), targets)


def square_loss(outputs, targets):
    return functional.mse_loss(outputs.squeeze(-1), targets)


def sigmoid_loss(outputs, targets):
    return functional.mse_loss(torch.sigmoid(outputs.squeeze(-1)), targets)


def linear_problem(loss, regularization=0.0, partition=None):
    torch.manual_seed(0)
    return Problem(
        model=nn.Linear(3, 1),
        loss=loss,
        inputs=INPUTS,
        targets=LABELS,
        partition=partition or iid(60, 5, seed=0),
        regularization=regularization,
    )


def test_logistic_regression_has_its_textbook_constants():
    found = estimate(linear_problem(logistic_loss, regularization=0.1))
    largest = np.linalg.eigvalsh(DESIGN.T @ DESIGN / 60)[-1]
    assert found.smoothness.value == pytest.approx(largest / 4 + 0.1, rel=1e-9)
    assert found.strong_convexity.value == pytest.approx(0.1, rel=1e-6)
    assert found.gradient_variance.value == pytest.approx(np.square(DESIGN).sum(1).mean(), rel=1e-9)
    assert {found.smoothness.certainty, found.gradient_variance.certainty} == {"bound"}


def test_logistic_optimum_is_where_the_gradient_vanishes():
    problem = linear_problem(logistic_loss, regularization=0.1)
    found = estimate(problem)
    scores = DESIGN @ found.optimum
    gradient = DESIGN.T @ (1 / (1 + np.exp(-scores)) - LABELS) / 60 + 0.1 * found.optimum
    assert np.abs(gradient).max() < 1e-8
    start = np.asarray(problem.initial_params, np.float64)
    assert found.initial_error.value == pytest.approx(np.square(start - found.optimum).sum())
    gap = problem.evaluate(problem.initial_params).loss - problem.evaluate(found.optimum).loss
    assert found.initial_gap.value == pytest.approx(gap, abs=1e-6)


def test_least_squares_constants_are_exact():
    found = estimate(linear_problem(square_loss))
    values = np.linalg.eigvalsh(2 * DESIGN.T @ DESIGN / 60)
    assert found.smoothness.value == pytest.approx(values[-1], rel=1e-6)
    assert found.strong_convexity.value == pytest.approx(values[0], rel=1e-6)
    assert found.smoothness.certainty == "exact"
    expected = np.linalg.lstsq(DESIGN, LABELS.astype(np.float64), rcond=None)[0]
    assert found.optimum == pytest.approx(expected, abs=1e-6)


def test_a_non_convex_linear_model_has_bounds_and_no_strong_convexity():
    """(sigmoid(z) - y)^2: |l'| <= 8/27 at sigmoid = 2/3, and the gap is at most f(x_0)."""
    problem = linear_problem(sigmoid_loss)
    found = estimate(problem)
    assert found.strong_convexity is None
    assert found.optimum is None
    mean_square = np.square(DESIGN).sum(1).mean()
    assert found.gradient_variance.value == pytest.approx((8 / 27) ** 2 * mean_square, rel=1e-4)
    assert found.initial_gap.value == pytest.approx(problem.evaluate(problem.initial_params).loss, rel=1e-5)
    assert found.initial_gap.certainty == "bound"


def test_bounds_hold_at_random_points():
    for loss in (logistic_loss, sigmoid_loss):
        problem = linear_problem(loss, regularization=0.05)
        found, full_loss = estimate(problem), FullLoss(problem)
        for scale in (0.1, 1.0, 10.0):
            one, two = GENERATOR.normal(scale=scale, size=(2, 4))
            difference = np.linalg.norm(full_loss.gradient(one) - full_loss.gradient(two))
            assert difference <= found.smoothness.value * np.linalg.norm(one - two)
            assert largest_variance(full_loss, [one]).value <= found.gradient_variance.value


def network_problem():
    torch.manual_seed(1)
    return Problem(
        model=nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)),
        loss=functional.cross_entropy,
        inputs=INPUTS,
        targets=LABELS.astype(np.int64),
        partition=iid(60, 5, seed=0),
    )


def test_a_network_gets_local_estimates_that_say_so():
    problem = network_problem()
    found = estimate(problem)
    assert found.smoothness.certainty == found.gradient_variance.certainty == "local"

    def objective(params):
        return problem.objective(params, problem.inputs.double(), problem.targets)

    start = torch.as_tensor(problem.initial_params, dtype=torch.float64)
    curvatures = torch.linalg.eigvalsh(torch.func.hessian(objective)(start))
    assert found.smoothness.value >= float(curvatures.max()) - 1e-6
    assert found.strong_convexity is None


def test_curvature_by_lanczos_agrees_with_the_dense_hessian():
    problem = network_problem()
    full_loss, start = FullLoss(problem), np.asarray(problem.initial_params, np.float64)
    dense = extreme_curvatures(full_loss, start)
    lanczos = extreme_curvatures(full_loss, start, dense_params=8)
    assert lanczos == pytest.approx(dense, rel=1e-2, abs=1e-2)


def test_gradient_variance_agrees_with_brute_force():
    problem = network_problem()
    full_loss, start = FullLoss(problem), np.asarray(problem.initial_params, np.float64)
    x = torch.as_tensor(start)
    gradients = [
        torch.func.grad(problem.objective)(x, problem.inputs[i : i + 1].double(), problem.targets[i : i + 1])
        for i in range(60)
    ]
    stacked = torch.stack(gradients)
    expected = float((stacked - stacked.mean(0)).square().sum(1).mean())
    assert largest_variance(full_loss, [start]).value == pytest.approx(expected, rel=1e-9)


def test_many_samples_are_estimated_from_some_with_an_error():
    count = MOST_SAMPLES + 1000
    problem = Problem(
        model=nn.Linear(1, 1),
        loss=square_loss,
        inputs=GENERATOR.normal(size=(count, 1)).astype(np.float32),
        targets=np.zeros(count, np.float32),
        partition=iid(count, 4, seed=0),
    )
    full_loss, x = FullLoss(problem), np.array([1.0, 0.5])
    sampled = largest_variance(full_loss, [x])
    blocks = np.concatenate(list(full_loss.sample_gradients(x, np.arange(count))))
    exact = np.square(blocks - blocks.mean(0)).sum(1).mean()
    assert abs(sampled.value - exact) < 5 * sampled.error
    assert 0 < sampled.error < 0.1 * exact


def test_clients_count_equally_whatever_they_hold():
    """f = 1/n sum f_i: one client with two samples weighs as much as one with 58."""
    problem = linear_problem(logistic_loss, 0.1, Partition.from_lists([[0, 1], np.arange(2, 60)]))
    full_loss, x = FullLoss(problem), np.array([0.3, -0.2, 0.1, 0.5])
    scores = DESIGN @ x
    losses = np.log1p(np.exp(scores)) - LABELS * scores
    expected = 0.5 * losses[:2].mean() + 0.5 * losses[2:].mean() + 0.05 * np.square(x).sum()
    assert full_loss.value(x) == pytest.approx(expected, rel=1e-9)
    slopes = (1 / (1 + np.exp(-scores)) - LABELS)[:, None] * DESIGN
    gradient = 0.5 * slopes[:2].mean(0) + 0.5 * slopes[2:].mean(0) + 0.1 * x
    assert full_loss.gradient(x) == pytest.approx(gradient, rel=1e-9)


def test_hessian_products_are_those_of_the_hessian():
    full_loss = FullLoss(linear_problem(logistic_loss, 0.1))
    x, v = np.array([0.3, -0.2, 0.1, 0.5]), np.array([1.0, 2.0, -1.0, 0.5])
    probability = 1 / (1 + np.exp(-DESIGN @ x))
    hessian = DESIGN.T @ (DESIGN * (probability * (1 - probability))[:, None]) / 60 + 0.1 * np.eye(4)
    assert full_loss.hessian_product(x, v) == pytest.approx(hessian @ v, rel=1e-9)


def test_known_constants_are_taken_as_they_are():
    optimum = np.array([0.1, 0.2, 0.3, 0.4])
    base = linear_problem(square_loss)
    known = ExactConstants(smoothness=5.0, strong_convexity=2.0, gradient_variance=3.0, optimum=optimum, minimum=0.01)
    problem = Problem(
        model=base.model, loss=square_loss, inputs=INPUTS, targets=LABELS, partition=base.partition, known=known
    )
    found = estimate(problem)
    assert found.assumptions(variance_bound=1.5).strong_convexity == 2.0
    assert found.assumptions(variance_bound=1.5).variance_bound == 1.5
    assert found.initial_gap.value == pytest.approx(base.evaluate(base.initial_params).loss - 0.01, rel=1e-5)


def test_float32_buffers_fall_back_to_single_precision():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 1)
            self.register_buffer("mixing", torch.eye(3))

        def forward(self, inputs):
            return self.linear(inputs @ self.mixing)

    problem = Problem(
        model=Scaled(), loss=logistic_loss, inputs=INPUTS, targets=LABELS, partition=iid(60, 5), regularization=0.1
    )
    assert estimate(problem).smoothness.value > 0.1


def test_an_unreachable_optimum_is_an_error_and_not_a_guess():
    with pytest.raises(ConfigError, match="raise regularization"):
        estimate(linear_problem(logistic_loss, regularization=1e-4), descent_steps=1)


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


def test_a_start_at_the_optimum_has_no_negative_gap():
    """Rounding made the gap -7e-15, which no bound takes."""
    assert estimate(synthetic_quadratic(regularization=1e200)).initial_gap.value == 0.0


def test_a_network_is_looked_at_where_runs_go_only():
    problem = make_problem("mlp")
    zeta = estimate(problem, descent_steps=20).heterogeneity
    assert zeta.source.startswith("largest of 3 points") and 0 < zeta.value < 100
