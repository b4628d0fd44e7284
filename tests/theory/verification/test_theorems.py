"""The bounds checked against short runs; the long ones are benchmarks/theory_verification.py."""

from __future__ import annotations

import json

import numpy as np
import pytest

import fedpaq
from fedpaq.errors import ConfigError
from fedpaq.problems import synthetic_quadratic
from fedpaq.quantizers import LowPrecision
from fedpaq.theory import estimate
from fedpaq.theory.verification import Check, CheckSetting, check_non_convex, check_strongly_convex
from fedpaq.theory.verification.theorems import _worst_ratio, non_convex_bound, strongly_convex_bound

PROBLEM = synthetic_quadratic(num_clients=4, dimension=3, samples_per_client=3)


@pytest.fixture(scope="module")
def theorem_1(quadratic):
    """n=4, r=3, tau=2, s=4: k0 = ceil(16 (8 (5 / 64 + 7 / 12) + 1)) = 101 as stated, 45 corrected."""
    setting = CheckSetting(
        clients_per_round=3, local_steps=2, batch_size=5, quantizer=fedpaq.LowPrecision(4), num_seeds=50
    )
    return check_strongly_convex(quadratic, estimate(quadratic), setting, num_rounds=300)


def test_measured_error_stays_under_every_bound_from_k0_on(theorem_1):
    assert theorem_1.verdict == "holds"
    assert all(bound.worst_ratio > 0 for bound in theorem_1.bounds)


def test_measured_error_falls_like_one_over_the_steps(theorem_1):
    """The true exponent is -1 up to terms of relative size 1 / k0, allowed 5 % here."""
    assert theorem_1.slope.low - 0.05 <= -1.0 <= theorem_1.slope.high + 0.05
    assert theorem_1.slope.high - theorem_1.slope.low < 0.5


def test_a_schedule_begun_at_k0_has_its_bound_before_any_run(quadratic):
    setting = CheckSetting(clients_per_round=4, local_steps=2, batch_size=5, num_seeds=10)
    estimates = estimate(quadratic)
    check = check_strongly_convex(quadratic, estimates, setting, num_rounds=60, from_first_round=True)
    assert check.verdict == "holds"
    assert check.bounds[0].values[0] >= estimates.initial_error.value
    assert check.mean[0] == pytest.approx(estimates.initial_error.value, rel=1e-5)


def test_runs_that_end_before_k0_are_refused(quadratic):
    setting = CheckSetting(clients_per_round=3, local_steps=2, quantizer=fedpaq.LowPrecision(2))
    with pytest.raises(ConfigError, match="num_rounds=10"):
        check_strongly_convex(quadratic, estimate(quadratic), setting, num_rounds=10)


def test_averaged_gradient_stays_under_theorem_2_and_falls_like_one_over_the_root(non_convex):
    setting = CheckSetting(
        clients_per_round=3, local_steps=2, quantizer=fedpaq.LowPrecision(4), num_seeds=8, batch_size=4
    )
    check = check_non_convex(non_convex, estimate(non_convex), setting, [100, 400])
    assert check.verdict == "holds"
    assert np.isfinite(check.bounds[2].values).all()  # corrected: tau = 2 is admissible throughout
    assert check.slope.value == pytest.approx(-0.5, abs=0.1)


def test_a_problem_without_optimum_has_no_theorem_1(non_convex):
    with pytest.raises(ConfigError, match="no unique optimum"):
        check_strongly_convex(non_convex, estimate(non_convex), CheckSetting(clients_per_round=3, local_steps=2))


def test_the_worst_ratio_is_taken_where_there_is_a_bound():
    mean = np.array([9.0, 1.0, 3.0])
    assert _worst_ratio(mean, np.array([np.nan, 2.0, 4.0])) == 0.75
    assert _worst_ratio(mean, np.full(3, np.nan)) is None
    assert _worst_ratio(mean, np.array([3.0, np.nan, np.nan])) == 3.0


def test_bounds_take_n_from_the_problem_and_q_from_the_quantizer():
    estimates = estimate(PROBLEM)
    setting = CheckSetting(clients_per_round=2, local_steps=2, batch_size=3, quantizer=LowPrecision(1))
    convex = strongly_convex_bound(PROBLEM, estimates, setting, "corrected")
    other = non_convex_bound(PROBLEM, estimates, setting, 50, "as_derived")
    for bound in (convex, other):
        assert bound.num_clients == 4 and bound.batch_size == 3 and bound.local_steps == 2
        assert bound.assumptions.variance_bound == LowPrecision(1).variance_bound(3)
    assert other.total_steps == 50 and convex.variant == "corrected" and other.variant == "as_derived"


def test_a_check_of_one_total_has_no_slope_and_no_bound_where_the_theorem_is_silent():
    setting = CheckSetting(clients_per_round=4, local_steps=2, batch_size=1, num_seeds=2)
    check = check_non_convex(PROBLEM, estimate(PROBLEM), setting, [4])
    assert check.slope is None and check.theorem == 2 and check.steps.tolist() == [4]
    stated = next(bound for bound in check.bounds if bound.variant == "as_stated")
    assert np.isnan(stated.values).all() and stated.first_round is None
    assert stated.worst_ratio is None and stated.verdict == "silent"
    assert check.to_dict()["bounds"][0]["values"] == [None]
    assert check.standard_error[0] > 0 and check.setting["num_clients"] == 4


def test_check_becomes_json(theorem_1):
    values = json.loads(json.dumps(theorem_1.to_dict(), allow_nan=False))
    assert values["setting"]["quantizer"] == "low-precision:4"
    assert [bound["first_round"] for bound in values["bounds"]] == [101, 101, 45]
    assert values["bounds"][0]["values"][0] is None  # before k0
    assert Check.from_dict(values).to_dict() == values
