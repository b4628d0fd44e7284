"""Measured left sides of both theorems, against plain loops, gradient descent and Lemma 1."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import fedpaq
from fedpaq.errors import ConfigError, DivergedError
from fedpaq.problems import synthetic_logistic, synthetic_quadratic
from fedpaq.quantizers import LowPrecision
from fedpaq.randomness import minibatches
from fedpaq.theory.verification import mean_squared_gradients, squared_errors
from fedpaq.theory.verification.measurement import virtual_means, with_seeds

PROBLEM = synthetic_quadratic(num_clients=4, dimension=3, samples_per_client=3)
CONFIG = fedpaq.FedPAQConfig(clients_per_round=2, local_steps=2, total_steps=6, batch_size=1, step_size=0.05, seed=9)


def test_seeds_count_from_zero_and_nothing_else_changes():
    configs = with_seeds(CONFIG, 3)
    assert [config.seed for config in configs] == [0, 1, 2]
    assert {replace(config, seed=0) for config in configs} == {replace(CONFIG, seed=0)}
    with pytest.raises(ConfigError, match="num_seeds=0"):
        with_seeds(CONFIG, 0)


def test_squared_errors_are_distances_of_the_run_s_own_params():
    configs, optimum = with_seeds(CONFIG, 2), PROBLEM.known.optimum
    errors = squared_errors(PROBLEM, configs, optimum, quantizer=LowPrecision(2))
    assert errors.shape == (2, 4) and np.isfinite(errors).all()
    for row, config in zip(errors, configs, strict=True):
        history = fedpaq.train(PROBLEM, config, quantizer=LowPrecision(2))
        assert row[-1] == pytest.approx(((history.params - optimum) ** 2).sum(), rel=1e-6)
        assert row[0] == pytest.approx((optimum**2).sum(), rel=1e-6)


def test_a_run_that_blows_up_is_named_by_its_seed():
    wild = [replace(CONFIG, seed=seed, step_size=eta, total_steps=200) for seed, eta in ((3, 0.05), (4, 1e8))]
    with pytest.raises(DivergedError, match=r"^seed=4: round="):
        squared_errors(PROBLEM, wild, PROBLEM.known.optimum)


def test_the_first_virtual_mean_is_what_the_clients_received():
    params = np.linspace(-1, 1, 6).astype(np.float32).reshape(2, 3)
    means = virtual_means(PROBLEM, with_seeds(CONFIG, 2), 0, params)
    assert len(means) == CONFIG.local_steps
    np.testing.assert_allclose(means[0], params, rtol=1e-6)
    assert not np.allclose(means[1], params)


def test_virtual_means_average_every_client_step_by_step(non_convex):
    """Against a plain loop over runs, clients and steps with the same draws."""
    config = fedpaq.FedPAQConfig(clients_per_round=2, local_steps=3, total_steps=3, batch_size=4, step_size=0.3, seed=5)
    configs = [config, replace(config, seed=6, step_size=0.1)]
    start = np.random.default_rng(0).normal(size=(2, non_convex.dimension)).astype(np.float32)
    means = virtual_means(non_convex, configs, 2, start)
    for run, run_config in enumerate(configs):
        locals_ = [torch.from_numpy(start[run].copy()) for _ in range(non_convex.num_clients)]
        for step in range(3):
            mean = torch.stack(locals_).double().mean(0).numpy()
            assert means[step][run] == pytest.approx(mean, abs=1e-6)
            for client in range(non_convex.num_clients):
                draws = minibatches(np.array([run_config.seed], np.uint64), 2, np.array([client]), np.array([40]), 12)
                batch = non_convex.batch(draws.reshape(3, 4)[step])
                gradient = torch.func.grad(non_convex.objective)(locals_[client], *batch)
                locals_[client] = locals_[client] - run_config.step_size * gradient


def test_with_all_clients_and_no_quantizer_the_run_follows_the_virtual_mean(non_convex):
    """r = n, tau = 1, Identity is parallel SGD: x_{k+1} is the mean of all clients' single steps."""
    config = fedpaq.FedPAQConfig(clients_per_round=4, local_steps=1, total_steps=2, batch_size=4, step_size=0.3, seed=1)
    seen = []
    fedpaq.train(non_convex, config, callback=lambda record, params: seen.append(params.copy()))
    two_steps = replace(config, local_steps=2)
    after_one = virtual_means(non_convex, [two_steps], 0, seen[0][None])[1][0]
    assert seen[1] == pytest.approx(after_one, abs=1e-6)


def test_mean_squared_gradient_of_a_run_without_noise_is_that_of_gradient_descent(quadratic):
    config = fedpaq.FedPAQConfig(clients_per_round=4, local_steps=1, total_steps=6, batch_size=None, step_size=0.2)
    x, total = np.zeros(5), 0.0
    curvature = np.linspace(2.0, 1.0, 5)
    for _ in range(6):
        gradient = curvature * (x - quadratic.known.optimum)
        total += np.square(gradient).sum()
        x -= 0.2 * gradient
    measured = mean_squared_gradients(quadratic, [config])
    assert measured[0] == pytest.approx(total / 6, rel=1e-4)


def test_lemma_1_holds_in_the_package_itself(quadratic):
    """Over 4000 seeds of one round: the three terms add up to E||x_1 - x*||^2 within 5 standard errors.

    Sampling, quantizer and gradients are the package's own; virtual clients give x-hat and x-bar.
    """
    runs, quantizer = 4000, fedpaq.LowPrecision(1)
    config = fedpaq.FedPAQConfig(clients_per_round=2, local_steps=2, total_steps=2, batch_size=2, step_size=0.2)
    everyone = fedpaq.FedPAQConfig(clients_per_round=4, local_steps=2, total_steps=2, batch_size=2, step_size=0.2)
    drawn = _final_params(quadratic, with_seeds(config, runs), quantizer)
    hat = _final_params(quadratic, with_seeds(everyone, runs), quantizer)
    bar = _final_params(quadratic, with_seeds(everyone, runs), fedpaq.Identity())
    optimum = quadratic.known.optimum
    whole = np.square(drawn - optimum).sum(1)
    parts = np.square(drawn - hat).sum(1) + np.square(hat - bar).sum(1) + np.square(bar - optimum).sum(1)
    difference = whole - parts
    assert abs(difference.mean()) < 5 * difference.std(ddof=1) / np.sqrt(runs)
    assert np.square(drawn - hat).sum(1).mean() > 0.01 * whole.mean()  # no term is negligible
    assert np.square(hat - bar).sum(1).mean() > 0.01 * whole.mean()


def _final_params(problem, configs, quantizer):
    histories = fedpaq.sweep(problem, configs, quantizer=quantizer, evaluate_every=0)
    return np.stack([history.params for history in histories])


def test_diverging_runs_are_an_error():
    problem = synthetic_logistic(num_clients=4, samples_per_client=5, regularization=1.0)
    config = fedpaq.FedPAQConfig(clients_per_round=4, local_steps=1, total_steps=400, step_size=50.0)
    with pytest.raises(DivergedError, match="seed=0"):
        squared_errors(problem, with_seeds(config, 2), np.zeros(problem.dimension))
