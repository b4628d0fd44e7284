"""Checks, slopes and measured means: exact on power laws, unmoved by scale, the same after JSON."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedpaq
from fedpaq.errors import ConfigError, DivergedError
from fedpaq.problems import synthetic_quadratic
from fedpaq.quantizers import Identity, LowPrecision
from fedpaq.theory import estimate
from fedpaq.theory.verification import Check, Setting, Slope, check_non_convex, fit_slope, squared_errors
from fedpaq.theory.verification.check import BoundCurve
from fedpaq.theory.verification.measurement import virtual_means, with_seeds
from fedpaq.theory.verification.plot import save_plot
from fedpaq.theory.verification.theorems import _worst_ratio, non_convex_bound, strongly_convex_bound

QUICK = settings(max_examples=40, deadline=None)
STEPS = np.array([1, 4, 16, 64, 256])


def curves_of(exponent, scale=1.0, runs=3):
    spread = 1 + 0.1 * np.arange(runs)[:, None]
    return scale * spread * STEPS[None, :] ** float(exponent)


@QUICK
@given(st.floats(-3, 3), st.floats(1e-6, 1e6))
def test_a_power_law_has_its_exponent_whatever_its_scale(exponent, scale):
    slope = fit_slope(STEPS, curves_of(exponent, scale))
    assert slope.value == pytest.approx(exponent, abs=1e-9)
    # Every resampled mean is the same law, scaled.
    assert slope.low == pytest.approx(exponent, abs=1e-9) and slope.high == pytest.approx(exponent, abs=1e-9)


def test_the_slope_is_the_least_squares_line_through_the_logarithms():
    curve = np.array([[3.0, 2.5, 0.9, 0.4, 0.2]])
    x, y = np.log(STEPS), np.log(curve[0])
    expected = ((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum()
    slope = fit_slope(STEPS, curve)
    assert slope.value == pytest.approx(expected, rel=1e-12)
    assert slope.low == pytest.approx(slope.value) and slope.high == pytest.approx(slope.value)  # one run only


def test_the_interval_holds_the_slope_and_is_the_same_at_every_call():
    generator = np.random.default_rng(4)
    curves = curves_of(-1.0, runs=20) * np.exp(0.3 * generator.normal(size=(20, 5)))
    one, other = fit_slope(STEPS, curves), fit_slope(STEPS, curves)
    assert one == other and one.low < one.value < one.high
    assert fit_slope(STEPS, curves, resamples=50).value == one.value


def make_check(**changes):
    values = {
        "theorem": 1,
        "problem": "p",
        "setting": {"local_steps": 2, "batch_size": None},
        "steps": np.array([1, 3, 5]),
        "mean": np.array([1.0, 0.5, 0.25]),
        "standard_error": np.array([0.1, 0.05, 0.0]),
        "bounds": [
            BoundCurve(
                variant="as_stated", first_round=1, values=np.array([np.nan, 2.0, 1.0]), worst_ratio=0.25
            ),
            BoundCurve(
                variant="corrected", first_round=None, values=np.array([4.0, 2.0, 1.0]), worst_ratio=1.0
            ),
        ],
        "slope": Slope(-1.0, -1.25, -0.75),
    }
    return Check(**{**values, **changes})


@pytest.mark.parametrize("changes", [{}, {"slope": None}, {"bounds": []}, {"theorem": 2}])
def test_a_check_survives_json(changes):
    check = make_check(**changes)
    text = json.dumps(check.to_dict(), allow_nan=False)
    again = Check.from_dict(json.loads(text))
    assert json.dumps(again.to_dict(), allow_nan=False) == text
    assert again.slope == check.slope and again.holds == check.holds
    assert again.steps.dtype == np.int64 and again.mean.tolist() == check.mean.tolist()
    for one, other in zip(again.bounds, check.bounds, strict=True):
        assert np.array_equal(one.values, other.values, equal_nan=True) and one.first_round == other.first_round


@pytest.mark.parametrize(("ratio", "holds"), [(0.0, True), (1.0, True), (math.nextafter(1.0, 2.0), False)])
def test_a_bound_holds_up_to_the_mean_itself(ratio, holds):
    bound = BoundCurve(variant="corrected", first_round=None, values=np.ones(1), worst_ratio=ratio)
    assert bound.holds is holds
    assert make_check(bounds=[*make_check().bounds, bound]).holds is holds


def test_the_worst_ratio_is_taken_where_there_is_a_bound():
    mean = np.array([9.0, 1.0, 3.0])
    assert _worst_ratio(mean, np.array([np.nan, 2.0, 4.0])) == 0.75
    assert _worst_ratio(mean, np.full(3, np.nan)) == 0.0
    assert _worst_ratio(mean, np.array([3.0, np.nan, np.nan])) == 3.0


@pytest.mark.parametrize("quantizer", [Identity(), LowPrecision(4)])
def test_a_setting_is_json_with_its_quantizer_by_name(quantizer):
    setting = Setting(clients_per_round=3, local_steps=2, batch_size=None, quantizer=quantizer, num_seeds=4)
    assert json.loads(json.dumps(setting.to_dict())) == {
        "clients_per_round": 3,
        "local_steps": 2,
        "batch_size": None,
        "quantizer": quantizer.name,
        "num_seeds": 4,
    }


@pytest.mark.parametrize("num_seeds", [1, 0, -2, 2.0])
def test_a_setting_needs_two_seeds_for_an_error(num_seeds):
    with pytest.raises(ConfigError, match=r"^num_seeds=.*choose an integer >= 2$"):
        Setting(clients_per_round=1, local_steps=1, num_seeds=num_seeds)


PROBLEM = synthetic_quadratic(num_clients=4, dimension=3, samples_per_client=3)
CONFIG = fedpaq.FedPAQConfig(
    clients_per_round=2, local_steps=2, total_steps=6, batch_size=1, step_size=0.05, seed=9
)


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


def test_bounds_take_n_from_the_problem_and_q_from_the_quantizer():
    estimates = estimate(PROBLEM)
    setting = Setting(clients_per_round=2, local_steps=2, batch_size=3, quantizer=LowPrecision(1))
    convex = strongly_convex_bound(PROBLEM, estimates, setting, "corrected")
    other = non_convex_bound(PROBLEM, estimates, setting, 50, "as_derived")
    for bound in (convex, other):
        assert bound.num_clients == 4 and bound.batch_size == 3 and bound.local_steps == 2
        assert bound.assumptions.variance_bound == LowPrecision(1).variance_bound(3)
    assert other.total_steps == 50 and convex.variant == "corrected" and other.variant == "as_derived"


def test_a_check_of_one_total_has_no_slope_and_no_bound_where_the_theorem_is_silent():
    setting = Setting(clients_per_round=4, local_steps=2, batch_size=1, num_seeds=2)
    check = check_non_convex(PROBLEM, estimate(PROBLEM), setting, [4])
    assert check.slope is None and check.theorem == 2 and check.steps.tolist() == [4]
    stated = next(bound for bound in check.bounds if bound.variant == "as_stated")
    assert np.isnan(stated.values).all() and stated.worst_ratio == 0.0 and stated.first_round is None
    assert check.to_dict()["bounds"][0]["values"] == [None]
    assert check.standard_error[0] > 0 and check.setting["num_clients"] == 4


def test_pictures_are_the_same_bytes_twice_and_make_their_folder(tmp_path):
    checks = [make_check(), make_check(theorem=2, slope=None)]
    files = [tmp_path / folder / "check.png" for folder in ("a", "b/c")]
    for file in files:
        save_plot(checks, ["one", "two"], file)
    assert files[0].read_bytes() == files[1].read_bytes() and files[0].read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="zip"):
        save_plot(checks, ["one"], tmp_path / "few.png")
    assert not (tmp_path / "few.png").exists()
