"""Checks and slopes: exact on power laws, unmoved by scale, the same after JSON, silent where they must be."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpaq.errors import ConfigError
from fedpaq.quantizers import Identity, LowPrecision, text_of
from fedpaq.theory.verification import BoundCurve, Check, CheckSetting, fit_slope
from small_checks import make_check

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


def test_slope_recovers_a_power_law_with_noise():
    steps = np.geomspace(100, 10_000, 20)
    noise = np.random.default_rng(1).lognormal(sigma=0.3, size=(50, 20))
    slope = fit_slope(steps, 3.0 * steps**-0.5 * noise)
    # Standard error: 0.3 / sqrt(50) a point over the root of sum (x - mean x)^2 = 39, so 0.007.
    assert abs(slope.value + 0.5) < 5 * 0.007
    assert (slope.high - slope.low) / 3.92 == pytest.approx(0.007, rel=0.4)


@pytest.mark.parametrize("changes", [{}, {"slope": None}, {"bounds": []}, {"theorem": 2}])
def test_a_check_survives_json(changes):
    check = make_check(**changes)
    text = json.dumps(check.to_dict(), allow_nan=False)
    again = Check.from_dict(json.loads(text))
    assert json.dumps(again.to_dict(), allow_nan=False) == text
    assert again.slope == check.slope and again.verdict == check.verdict
    assert again.steps.dtype == np.int64 and again.mean.tolist() == check.mean.tolist()
    for one, other in zip(again.bounds, check.bounds, strict=True):
        assert np.array_equal(one.values, other.values, equal_nan=True) and one.first_round == other.first_round


def curve_with(ratio):
    return BoundCurve(variant="corrected", first_round=None, values=np.ones(1), worst_ratio=ratio)


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [(0.0, "holds"), (1.0, "holds"), (math.nextafter(1.0, 2.0), "fails"), (math.nan, "fails"), (None, "silent")],
)
def test_a_bound_holds_up_to_the_mean_itself(ratio, verdict):
    assert curve_with(ratio).verdict == verdict


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ((0.5, 1.0), "holds"),
        ((0.5, 2.0), "fails"),
        ((None, 2.0), "fails"),
        ((None, 0.5), "holds"),
        ((None, None), "silent"),
        ((), "silent"),
    ],
)
def test_a_check_without_any_bound_is_silent_and_does_not_hold(ratios, verdict):
    check = make_check(bounds=[curve_with(ratio) for ratio in ratios])
    assert check.verdict == verdict
    assert Check.from_dict(json.loads(json.dumps(check.to_dict()))).verdict == verdict


@pytest.mark.parametrize("quantizer", [Identity(), LowPrecision(4)])
def test_a_setting_is_json_with_its_quantizer_by_text(quantizer):
    setting = CheckSetting(clients_per_round=3, local_steps=2, batch_size=None, quantizer=quantizer, num_seeds=4)
    assert json.loads(json.dumps(setting.to_dict())) == {
        "clients_per_round": 3,
        "local_steps": 2,
        "batch_size": None,
        "levels": 4 if quantizer == LowPrecision(4) else 0,
        "quantizer": text_of(quantizer),
        "downlink": "dense",
        "num_seeds": 4,
    }


@pytest.mark.parametrize("num_seeds", [1, 0, -2, 2.0, 10**200])
def test_a_setting_needs_two_seeds_for_an_error(num_seeds):
    with pytest.raises(ConfigError, match=r"^num_seeds=.*choose 2..1000000$"):
        CheckSetting(clients_per_round=1, local_steps=1, num_seeds=num_seeds)
