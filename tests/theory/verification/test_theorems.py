"""The bounds held against short runs; the long ones are benchmarks/theory_verification.py."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

import fedpaq
from fedpaq.errors import ConfigError, DivergedError
from fedpaq.problems import Partition, Problem, synthetic_logistic, synthetic_quadratic
from fedpaq.randomness import minibatches
from fedpaq.theory import estimate
from fedpaq.theory.verification import (
    Check,
    Setting,
    check_non_convex,
    check_strongly_convex,
    fit_slope,
    mean_squared_gradients,
    squared_errors,
)
from fedpaq.theory.verification.measurement import virtual_means, with_seeds
from fedpaq.theory.verification.plot import save_plot


@pytest.fixture(scope="module")
def quadratic():
    return synthetic_quadratic(num_clients=4, samples_per_client=5, dimension=5, smoothness=2.0)


@pytest.fixture(scope="module")
def theorem_1(quadratic):
    """n=4, r=3, tau=2, s=4: k0 = ceil(16 (8 (5 / 64 + 7 / 12) + 1)) = 101 as stated, 45 corrected."""
    setting = Setting(
        clients_per_round=3, local_steps=2, batch_size=5, quantizer=fedpaq.LowPrecision(4), num_seeds=50
    )
    return check_strongly_convex(quadratic, estimate(quadratic), setting, num_rounds=300)


def test_measured_error_stays_under_every_bound_from_k0_on(theorem_1):
    assert theorem_1.holds
    assert all(bound.worst_ratio > 0 for bound in theorem_1.bounds)


def test_measured_error_falls_like_one_over_the_steps(theorem_1):
    """The true exponent is -1 up to terms of relative size 1 / k0, allowed 5 % here."""
    assert theorem_1.slope.low - 0.05 <= -1.0 <= theorem_1.slope.high + 0.05
    assert theorem_1.slope.high - theorem_1.slope.low < 0.5


def test_a_schedule_begun_at_k0_has_its_bound_before_any_run(quadratic):
    setting = Setting(clients_per_round=4, local_steps=2, batch_size=5, num_seeds=10)
    estimates = estimate(quadratic)
    check = check_strongly_convex(quadratic, estimates, setting, num_rounds=60, from_first_round=True)
    assert check.holds
    assert check.bounds[0].values[0] >= estimates.initial_error.value
    assert check.mean[0] == pytest.approx(estimates.initial_error.value, rel=1e-5)


def test_runs_that_end_before_k0_are_refused(quadratic):
    setting = Setting(clients_per_round=3, local_steps=2, quantizer=fedpaq.LowPrecision(2))
    with pytest.raises(ConfigError, match="num_rounds=10"):
        check_strongly_convex(quadratic, estimate(quadratic), setting, num_rounds=10)


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


def test_averaged_gradient_stays_under_theorem_2_and_falls_like_one_over_the_root(non_convex):
    setting = Setting(
        clients_per_round=3, local_steps=2, quantizer=fedpaq.LowPrecision(4), num_seeds=8, batch_size=4
    )
    check = check_non_convex(non_convex, estimate(non_convex), setting, [100, 400])
    assert check.holds
    assert np.isfinite(check.bounds[2].values).all()  # corrected: tau = 2 is admissible throughout
    assert check.slope.value == pytest.approx(-0.5, abs=0.1)


def test_a_problem_without_optimum_has_no_theorem_1(non_convex):
    with pytest.raises(ConfigError, match="no unique optimum"):
        check_strongly_convex(non_convex, estimate(non_convex), Setting(clients_per_round=3, local_steps=2))


def test_virtual_means_average_every_client_step_by_step(non_convex):
    """Against a plain loop over runs, clients and steps with the same draws."""
    config = fedpaq.FedPAQConfig(
        clients_per_round=2, local_steps=3, total_steps=3, batch_size=4, step_size=0.3, seed=5
    )
    configs = [config, replace(config, seed=6, step_size=0.1)]
    start = np.random.default_rng(0).normal(size=(2, non_convex.dimension)).astype(np.float32)
    means = virtual_means(non_convex, configs, 2, start)
    for run, run_config in enumerate(configs):
        locals_ = [torch.from_numpy(start[run].copy()) for _ in range(non_convex.num_clients)]
        for step in range(3):
            mean = torch.stack(locals_).double().mean(0).numpy()
            assert means[step][run] == pytest.approx(mean, abs=1e-6)
            for client in range(non_convex.num_clients):
                draws = minibatches(
                    np.array([run_config.seed], np.uint64), 2, np.array([client]), np.array([40]), 12
                )
                batch = non_convex.batch(draws.reshape(3, 4)[step])
                gradient = torch.func.grad(non_convex.objective)(locals_[client], *batch)
                locals_[client] = locals_[client] - run_config.step_size * gradient


def test_with_all_clients_and_no_quantizer_the_run_follows_the_virtual_mean(non_convex):
    """r = n, tau = 1, Identity is parallel SGD: x_{k+1} is the mean of all clients' single steps."""
    config = fedpaq.FedPAQConfig(
        clients_per_round=4, local_steps=1, total_steps=2, batch_size=4, step_size=0.3, seed=1
    )
    seen = []
    fedpaq.train(non_convex, config, callback=lambda record, params: seen.append(params.copy()))
    two_steps = replace(config, local_steps=2)
    after_one = virtual_means(non_convex, [two_steps], 0, seen[0][None])[1][0]
    assert seen[1] == pytest.approx(after_one, abs=1e-6)


def test_mean_squared_gradient_of_a_run_without_noise_is_that_of_gradient_descent(quadratic):
    config = fedpaq.FedPAQConfig(
        clients_per_round=4, local_steps=1, total_steps=6, batch_size=None, step_size=0.2
    )
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
    everyone = fedpaq.FedPAQConfig(
        clients_per_round=4, local_steps=2, total_steps=2, batch_size=2, step_size=0.2
    )
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


def test_slope_recovers_a_power_law_with_noise():
    steps = np.geomspace(100, 10_000, 20)
    noise = np.random.default_rng(1).lognormal(sigma=0.3, size=(50, 20))
    slope = fit_slope(steps, 3.0 * steps**-0.5 * noise)
    # Standard error: 0.3 / sqrt(50) a point over the root of sum (x - mean x)^2 = 39, so 0.007.
    assert abs(slope.value + 0.5) < 5 * 0.007
    assert (slope.high - slope.low) / 3.92 == pytest.approx(0.007, rel=0.4)


def test_check_becomes_json_and_a_picture(theorem_1, tmp_path):
    values = json.loads(json.dumps(theorem_1.to_dict(), allow_nan=False))
    assert values["setting"]["quantizer"] == "low-precision(s=4)"
    assert [bound["first_round"] for bound in values["bounds"]] == [101, 101, 45]
    assert values["bounds"][0]["values"][0] is None  # before k0
    assert Check.from_dict(values).to_dict() == values
    save_plot([theorem_1], ["Theorem 1"], tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
