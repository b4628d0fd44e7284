"""Synthetic problems: constants known exactly, a million clients in little memory."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch

from fedpaq import problems
from fedpaq.errors import ConfigError


def quadratic(**changes) -> problems.Problem:
    options = {"num_clients": 4, "dimension": 7, "strong_convexity": 0.5, "smoothness": 3.0, "noise": 0.8}
    return problems.synthetic_quadratic(**{**options, **changes})


@pytest.mark.parametrize("regularization", [0.0, 0.25])
def test_quadratic_knows_its_curvature(regularization):
    problem = quadratic(regularization=regularization)
    x, y = problem.batch(problem.partition.samples_of(2))
    hessian = torch.func.hessian(lambda p: problem.objective(p, x, y))(torch.ones(7))
    eigenvalues = torch.linalg.eigvalsh(hessian.double())
    assert float(eigenvalues[0]) == pytest.approx(problem.known.strong_convexity, rel=1e-6)
    assert float(eigenvalues[-1]) == pytest.approx(problem.known.smoothness, rel=1e-6)


@pytest.mark.parametrize("regularization", [0.0, 0.25])
def test_quadratic_knows_its_optimum_and_minimum(regularization):
    problem = quadratic(regularization=regularization)
    optimum = torch.tensor(problem.known.optimum, dtype=torch.float32, requires_grad=True)
    value = problem.objective(optimum, problem.inputs, problem.targets)
    value.backward()
    assert float(optimum.grad.norm()) < 1e-5
    assert problem.evaluate(optimum.detach()).loss == pytest.approx(problem.known.minimum, rel=1e-6)


@pytest.mark.parametrize("regularization", [0.0, 0.25])
def test_quadratic_knows_its_gradient_variance_at_every_point(regularization):
    problem = quadratic(regularization=regularization)
    for point in (torch.zeros(7), torch.randn(7, generator=torch.Generator().manual_seed(0))):
        gradient = torch.func.grad(lambda p, s: problem.objective(p, s[None], torch.zeros(1)))
        each = torch.func.vmap(gradient, (None, 0))(point, problem.inputs).double()  # (m, p)
        variance = float((each - each.mean(0)).square().sum(1).mean())
        assert variance == pytest.approx(problem.known.gradient_variance, rel=1e-5)


def test_quadratic_without_noise_has_no_gradient_variance():
    known = quadratic(noise=0.0).known
    assert known.gradient_variance == pytest.approx(0.0, abs=1e-10)
    assert known.minimum == pytest.approx(0.0, abs=1e-10)


def test_every_client_of_the_quadratic_holds_the_same_samples():
    problem = problems.load("synthetic-quadratic", num_clients=30)
    for client in (0, 17, 29):
        assert problem.partition.samples_of(client).tolist() == list(range(10))
    assert problem.evaluate(problem.initial_params).accuracy is None
    assert (problem.known.smoothness, problem.known.strong_convexity) == (4.0, 1.0)


@pytest.mark.parametrize("name", ["synthetic-quadratic", "synthetic-logistic"])
def test_a_million_clients_load_in_memory_linear_in_clients(name):
    tracemalloc.start()
    try:
        problem = problems.load(name, num_clients=10**6)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert problem.num_clients == 10**6
    assert peak < 600 * 10**6  # bytes a client, temporaries included
    assert np.isfinite(problem.evaluate(problem.initial_params).loss)


def test_synthetic_logistic_can_be_learnt():
    problem = problems.synthetic_logistic(num_clients=100, samples_per_client=20, dimension=6)
    params = torch.zeros(6, requires_grad=True)
    optimizer = torch.optim.LBFGS([params], max_iter=50, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        value = problem.objective(params, problem.inputs, problem.targets)
        value.backward()
        return value

    optimizer.step(closure)
    assert problem.evaluate(params.detach()).accuracy > 0.7
    assert problem.regularization == 1 / 2000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"smoothness": 0.1}, "smoothness=0.1 is below strong_convexity=0.5; choose L >= mu"),
        ({"strong_convexity": 0.0}, "strong_convexity=0.0 is not allowed"),
        ({"noise": -1.0}, "noise=-1.0 is not allowed"),
        ({"dimension": 0}, "dimension=0 is out of range"),
    ],
)
def test_bad_quadratics_say_what_is_allowed(options, message):
    with pytest.raises(ConfigError, match=message):
        quadratic(**options)
