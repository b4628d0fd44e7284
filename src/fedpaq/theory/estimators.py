"""Estimators: L, mu, sigma^2, f(x_0) - f* and x* of a problem, each with its certainty.

exact     known, or computed to rounding
bound     on the safe side at every x (L, sigma^2 and the gap from above, mu from below)
local     true at three points (the start, the end of a descent and the middle); the
          assumption covers all points, so a bound made from it may fail
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy.optimize
import scipy.sparse.linalg
from threadpoolctl import threadpool_limits

from fedpaq.arrays import Float64, Int64
from fedpaq.errors import ConfigError
from fedpaq.problems import Problem
from fedpaq.theory.assumptions import Assumptions
from fedpaq.theory.full_loss import FullLoss
from fedpaq.theory.linear_model import LinearModel, client_smoothness, linear_model

Certainty = Literal["exact", "bound", "local"]
MOST_SAMPLES = 4096  # beyond this many, a variance is estimated from a random part of the gradients
DESCENT_STEPS = 500
DENSE_PARAMS = 64
MOST_CLIENTS = 256  # beyond this many, heterogeneity is estimated from some of them
FAR = 1e3


@dataclass(frozen=True)
class Estimate:
    """A number, its certainty and its source; ``error`` is one standard error, if sampled."""

    value: float
    certainty: Certainty
    source: str
    error: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Estimates:
    """The constants of a problem that the theorems need."""

    smoothness: Estimate  # L
    strong_convexity: Estimate | None  # mu; None where the loss is not known to be strongly convex
    gradient_variance: Estimate  # sigma^2 of a single-sample gradient
    initial_gap: Estimate  # f(x_0) - f*
    initial_error: Estimate | None  # ||x_0 - x*||^2; None without a unique optimum
    optimum: Float64 | None  # x*, (p,)
    heterogeneity: Estimate  # zeta^2, the mean over clients of ||grad f_i - grad f||^2; 0 where f_i = f
    client_smoothness: Estimate | None  # the largest L_i; None where it is not known

    def assumptions(self, variance_bound: float = 0.0) -> Assumptions:
        """Return the constants of Assumptions 1 to 4, with the quantizer's q."""
        return Assumptions(
            smoothness=self.smoothness.value,
            gradient_variance=self.gradient_variance.value,
            variance_bound=variance_bound,
            strong_convexity=None if self.strong_convexity is None else self.strong_convexity.value,
        )

    @property
    def are_clients_equal(self) -> bool:
        """Whether f_i = f, as both theorems assume."""
        return self.heterogeneity.value <= 1e-12 * self.gradient_variance.value


def estimate(problem: Problem, *, descent_steps: int = DESCENT_STEPS) -> Estimates:
    """Estimate the constants of ``problem``: exactly where it knows them or a formula exists.

    BLAS keeps to one thread: its products are small here, and beside busy processes its threads wait for each other.
    """
    with threadpool_limits(1, user_api="blas"):
        return _estimate(problem, descent_steps)


def _estimate(problem: Problem, descent_steps: int) -> Estimates:
    full_loss = FullLoss(problem)
    start = np.asarray(problem.initial_params, np.float64)
    if problem.known is not None:
        return _from_known(full_loss, start)
    end = descend(full_loss, start, descent_steps)
    linear = linear_model(full_loss)
    if linear is None:
        return _from_points(full_loss, start, end)
    return _from_formula(full_loss, linear, start, end)


def measure_heterogeneity(full_loss: FullLoss, start: Float64, end: Float64, *, afar: bool = True) -> Estimate:
    """Return the largest 1/n sum_i ||grad f_i - grad f||^2 of some points, near the run and, if ``afar``, far from it.

    Far away the gradients of a linear model level off. Those of a network grow without limit, where no run goes.
    """
    partition = full_loss.problem.partition
    sizes = partition.sizes()
    if (sizes == sizes[0]).all():
        held = np.sort(partition.indices.reshape(-1, sizes[0]), axis=1)
        if (held == held[0]).all():
            return Estimate(0.0, "exact", "every client draws from the same samples")
    clients = np.arange(full_loss.problem.num_clients)
    sampled = len(clients) > MOST_CLIENTS
    if sampled:
        clients = np.random.default_rng(0).choice(clients, MOST_CLIENTS, replace=False)
    far = np.random.default_rng(1).normal(size=len(start))  # where a sigmoid has levelled off
    points = [start, 0.5 * (start + end), end]
    if afar:
        points += [end + FAR * far, end - FAR * far]
    values = []
    for point in points:
        mean = full_loss.gradient(point)
        values.append(np.mean([np.square(full_loss.client_gradient(point, i) - mean).sum() for i in clients.tolist()]))
    of = f" from {MOST_CLIENTS} sampled clients" if sampled else ""
    return Estimate(float(max(values)), "local", f"largest of {len(points)} points{of}")


def _from_known(full_loss: FullLoss, start: Float64) -> Estimates:
    known, initial_value = full_loss.problem.known, full_loss.value(start)
    assert known is not None  # the caller's branch
    source = "known by construction"
    return Estimates(
        smoothness=Estimate(known.smoothness, "exact", source),
        strong_convexity=Estimate(known.strong_convexity, "exact", source),
        gradient_variance=Estimate(known.gradient_variance, "exact", source),
        initial_gap=Estimate(max(initial_value - known.minimum, 0.0), "exact", source),  # rounding
        initial_error=Estimate(float(np.square(start - known.optimum).sum()), "exact", source),
        optimum=known.optimum,
        heterogeneity=measure_heterogeneity(full_loss, start, known.optimum),
        client_smoothness=None,
    )


def _from_formula(full_loss: FullLoss, linear: LinearModel, start: Float64, end: Float64) -> Estimates:
    """Use the formulas of ``linear_model``; x* where the loss is strongly convex."""
    weight = full_loss.problem.regularization
    low, high = linear.curvature
    constant = high - low <= 1e-9 * abs(high)
    smoothness = max(high, -low) * linear.spectrum[1] + weight
    convexity = max(low, 0.0) * linear.spectrum[0] + weight if low > -1e-9 else 0.0
    strong = convexity > 1e-9 * smoothness
    differ = measure_heterogeneity(full_loss, start, end)
    few = full_loss.problem.num_clients <= MOST_CLIENTS
    source = f"linear model: {linear.curvature[0]:.3g} <= l'' <= {linear.curvature[1]:.3g}"
    certainty: Certainty = "exact" if constant else "bound"
    if np.isfinite(linear.slope):
        variance = Estimate(linear.slope**2 * linear.mean_square, "bound", f"linear model: |l'| <= {linear.slope:.3g}")
    else:
        variance = largest_variance(full_loss, [start, 0.5 * (start + end), end])
    return Estimates(
        smoothness=Estimate(smoothness, certainty, source),
        strong_convexity=Estimate(convexity, certainty, source) if strong else None,
        gradient_variance=variance,
        initial_gap=_gap(full_loss, start, end, convexity if strong else None, linear.floor),
        initial_error=_distance(full_loss, start, end, convexity) if strong else None,
        optimum=end if strong else None,
        heterogeneity=differ,
        client_smoothness=Estimate(client_smoothness(full_loss, linear), certainty, source)
        if few and differ.value
        else None,
    )


def _from_points(full_loss: FullLoss, start: Float64, end: Float64) -> Estimates:
    """Look at the curvature and the noise at three points."""
    points = [start, 0.5 * (start + end), end]
    ends = [extreme_curvatures(full_loss, point) for point in points]
    low, high = min(e[0] for e in ends), max(max(e[1], -e[0]) for e in ends)
    source = f"Lanczos on Hessian products at {len(points)} points"
    strong = low > 1e-6 * high
    return Estimates(
        smoothness=Estimate(high, "local", source),
        strong_convexity=Estimate(low, "local", source) if strong else None,
        gradient_variance=largest_variance(full_loss, points),
        initial_gap=_gap(full_loss, start, end, None, None),
        initial_error=Estimate(float(np.square(start - end).sum()), "local", "descent") if strong else None,
        optimum=end if strong else None,
        heterogeneity=measure_heterogeneity(full_loss, start, end, afar=False),
        client_smoothness=None,
    )


def descend(full_loss: FullLoss, start: Float64, steps: int = DESCENT_STEPS, enough: float = -math.inf) -> Float64:
    """Return where L-BFGS arrives from ``start``, or where the loss first was ``enough``."""

    def stop_when_enough(intermediate_result: Any) -> None:
        if intermediate_result.fun <= enough:
            raise StopIteration

    result = scipy.optimize.minimize(
        full_loss.value_and_gradient,
        start,
        jac=True,
        method="L-BFGS-B",
        callback=stop_when_enough,
        options={"maxiter": steps, "ftol": 0.0, "gtol": 1e-10, "maxcor": 20},
    )
    return np.asarray(result.x, np.float64)


def largest_variance(full_loss: FullLoss, points: Sequence[Float64]) -> Estimate:
    """Return the largest E||g - grad f||^2 among ``points``, over all samples or some of them."""
    samples, weights = _chosen_samples(full_loss)
    variances = [_variance_at(full_loss, point, samples, weights) for point in points]
    value, error = max(variances)
    sampled = "" if len(samples) == full_loss.num_samples else f" from {len(samples)} sampled gradients"
    return Estimate(value, "local", f"largest of {len(points)} points{sampled}", 0.0 if not sampled else error)


def _chosen_samples(full_loss: FullLoss) -> tuple[Int64, Float64]:
    """Return all held samples with their weights, or MOST_SAMPLES drawn by weight, equally weighted."""
    if full_loss.num_samples <= MOST_SAMPLES:
        return np.arange(full_loss.num_samples), full_loss.weights
    generator = np.random.default_rng(0)
    drawn = generator.choice(full_loss.num_samples, MOST_SAMPLES, p=full_loss.weights)
    return drawn.astype(np.int64), np.full(MOST_SAMPLES, 1 / MOST_SAMPLES)


def _variance_at(full_loss: FullLoss, point: Float64, samples: Int64, weights: Float64) -> tuple[float, float]:
    mean = full_loss.gradient(point)
    squares = np.concatenate(
        [np.square(block - mean).sum(axis=1) for block in full_loss.sample_gradients(point, samples)]
    )
    value = float(weights @ squares)
    return value, float(np.sqrt(weights @ np.square(squares - value) / len(samples)))


def extreme_curvatures(full_loss: FullLoss, point: Float64, dense_params: int = DENSE_PARAMS) -> tuple[float, float]:
    """Return the least and largest eigenvalue of the Hessian, built whole up to ``dense_params``."""
    if len(point) <= dense_params:
        hessian = np.stack([full_loss.hessian_product(point, row) for row in np.eye(len(point))])
        values = np.linalg.eigvalsh(0.5 * (hessian + hessian.T))
        return float(values[0]), float(values[-1])
    high = largest_curvature(full_loss, point)
    # The least is the largest of the flipped Hessian: Lanczos is slow at a crowded end near zero.
    return high - largest_curvature(full_loss, point, flipped_at=high), high


def largest_curvature(full_loss: FullLoss, point: Float64, flipped_at: float | None = None) -> float:
    """Return the largest eigenvalue of the Hessian H, or of ``flipped_at`` times I - H, to a thousandth."""
    p = len(point)

    def product(vector: Float64) -> Float64:
        along = full_loss.hessian_product(point, vector.ravel())
        return along if flipped_at is None else flipped_at * vector.ravel() - along

    operator = scipy.sparse.linalg.LinearOperator((p, p), matvec=product, dtype=np.float64)
    start = np.random.default_rng(0).normal(size=p)
    values = scipy.sparse.linalg.eigsh(
        operator, k=1, which="LA", v0=start, tol=1e-3, ncv=min(p, 16), return_eigenvectors=False
    )
    return float(values[0])


def _gap(full_loss: FullLoss, start: Float64, end: Float64, convexity: float | None, floor: float | None) -> Estimate:
    """Return f(x_0) - f*: from a strongly convex minimum, from a floor of the loss, or from a descent."""
    first, last = full_loss.value(start), full_loss.value(end)
    if convexity is not None:
        slack = float(np.square(full_loss.gradient(end)).sum()) / (2 * convexity)
        return Estimate(first - last + slack, "exact", f"minimised; f* is at most {slack:.1g} lower")
    if floor is not None:
        return Estimate(first - floor, "bound", "f* is at least the mean of the losses' own minima")
    return Estimate(first - last, "local", "f* from a descent: it may be lower")


def _distance(full_loss: FullLoss, start: Float64, end: Float64, convexity: float) -> Estimate:
    off = float(np.linalg.norm(full_loss.gradient(end))) / convexity  # ||x - x*|| <= ||grad f(x)|| / mu
    value = float(np.square(start - end).sum())
    if off > 1e-3 * np.sqrt(value):
        raise ConfigError(
            f"regularization={full_loss.problem.regularization}: the optimum of problem="
            f"{full_loss.problem.name!r} is known only to {off:.2g}, at {np.sqrt(value):.2g} from the start; "
            "raise regularization"
        )
    return Estimate(value, "exact", f"minimised; x* is at most {off:.1g} away")
