"""Curves: JSON in and out, and axes that agree with what a run itself reports."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedpaq
from fedpaq.errors import ConfigError
from fedpaq.experiments import PLOTS, Curve, CurveSettings, PaperSetting, run_curve
from fedpaq.experiments.curve import ACCOUNTINGS, curve_settings, rounded
from small_figure import planted

SETTINGS = CurveSettings("mnist-logistic", PaperSetting(1, 5, 20), seeds=(0, 1), tuning_seeds=(7, 8, 9))


@pytest.fixture(scope="module")
def mnist():
    return fedpaq.problems.load("mnist-logistic")


@pytest.fixture(scope="module")
def curve(mnist):
    return run_curve(mnist, SETTINGS)


@pytest.mark.parametrize("accounting", ACCOUNTINGS)
def test_every_axis_equals_that_of_an_independent_run(mnist, curve, accounting):
    cost_model = fedpaq.CostModel.from_ratio(100, accounting=accounting)
    config = fedpaq.FedPAQConfig(
        clients_per_round=5, local_steps=20, total_steps=100, step_size=curve.step_size, seed=1
    )
    history = fedpaq.train(mnist, config, quantizer=fedpaq.LowPrecision(1), cost_model=cost_model)
    records = history.records
    np.testing.assert_allclose(curve.loss[1], [record.loss for record in records], rtol=1e-5)
    np.testing.assert_array_equal(curve.payload_bytes[1], [record.payload_bytes for record in records])
    np.testing.assert_allclose(curve.bits(accounting)[1], [record.upload_bits for record in records])
    seconds = curve.axis("seconds", accounting, cost_model)[1]
    np.testing.assert_allclose(seconds, [record.seconds for record in records], rtol=5e-6)  # six digits
    np.testing.assert_array_equal(curve.axis("rounds", accounting, cost_model)[1], range(6))


def test_json_keeps_six_digits_and_loses_nothing_twice(curve):
    text = curve.to_json()
    again = Curve.from_json(text)
    assert again.to_json() == text
    assert again.settings == curve.settings and again.tuning == curve.tuning
    np.testing.assert_allclose(again.loss, curve.loss, rtol=1e-5)


def test_the_same_settings_give_the_same_json(mnist, curve):
    assert run_curve(mnist, SETTINGS).to_json() == curve.to_json()


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(CurveSettings)])
def test_the_key_depends_on_every_setting(field):
    value = getattr(SETTINGS, field)
    if isinstance(value, PaperSetting):
        changed = PaperSetting(2, 5, 20)
    elif isinstance(value, tuple):
        changed = (*value, 99)
    else:
        changed = (value or 0) + 1 if value is None or isinstance(value, int) else value + "x"
    assert dataclasses.replace(SETTINGS, **{field: changed}).key != SETTINGS.key


def test_the_sixth_figure_keeps_the_names_it_was_published_with():
    (fixed, *_) = curve_settings(PLOTS["rates-mnist"])
    assert {"rule", "device", "seeds_at_once"}.isdisjoint(fixed.values) and len(fixed.seeds) == 5
    assert dataclasses.replace(fixed, version="0.9.0").key == "718a160a218d" or fixed.version != "0.9.0"


def test_a_curve_may_have_the_first_of_its_seeds_only(curve):
    one = curve.first(1)
    assert one.num_seeds == 1 and curve.num_seeds == 2
    again = Curve.from_json(one.to_json())
    assert again.num_seeds == 1 and again.settings == curve.settings
    np.testing.assert_array_equal(again.loss, curve.loss[:1])


def test_a_diverged_trial_is_kept_as_null():
    values = json.loads(planted(PaperSetting(1, 5, 10), 0.9).to_json())
    assert values["tuning"] == [{"step_size": 0.1, "losses": [0.3, None]}]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "other"}'])
def test_a_foreign_file_is_refused_by_name(text):
    with pytest.raises(ConfigError, match="not a curve"):
        Curve.from_json(text)


def test_unknown_axes_and_counts_are_refused():
    curve = planted(PaperSetting(1, 5, 10), 0.9)
    with pytest.raises(ConfigError, match="unknown accounting"):
        curve.bits("entropy")
    with pytest.raises(ConfigError, match="unknown axis"):
        curve.axis("time", "payload", fedpaq.CostModel.from_ratio(1))


@given(st.lists(st.floats(-1e12, 1e12), max_size=20))
@settings(max_examples=50, deadline=None)
def test_rounding_to_six_digits_is_idempotent_and_right_to_half_a_millionth(values):
    once = rounded(values)
    assert rounded(once) == once
    np.testing.assert_allclose(once, values, rtol=5e-6)


def test_a_curve_with_a_loss_that_is_not_a_number_is_refused_when_written():
    curve = planted(PaperSetting(1, 5, 50), 0.9)
    curve.loss[0, 1] = math.nan
    with pytest.raises(ValueError, match=r"not JSON compliant|Out of range"):
        curve.to_json()


def test_bits_of_fixed_width_are_a_sign_and_a_level_per_coordinate_and_a_norm():
    curve = planted(PaperSetting(5, 10, 50), 0.9)
    each = 1000 * (1 + 3) + 32  # six magnitudes take 3 bits, a sign, and one norm
    assert curve.bits("fixed-width")[0].tolist() == [0.0, 10.0 * each, 20.0 * each]
    plain = planted(PaperSetting(None, 10, 50), 0.9)
    assert plain.bits("fixed-width")[0].tolist() == [0.0, 320_000.0, 640_000.0]


def test_relative_loss_begins_at_one_and_does_not_depend_on_the_scale():
    curve = planted(PaperSetting(1, 5, 10), 0.8, start=2.0)
    scaled = dataclasses.replace(curve, loss=1000 * curve.loss)
    np.testing.assert_allclose(scaled.relative_loss, curve.relative_loss, rtol=1e-15)
    assert (curve.relative_loss[:, 0] == 1.0).all()


def test_a_curve_of_another_format_is_refused_by_name():
    text = planted(PaperSetting(1, 5, 50), 0.9).to_json().replace("fedpaq-curve-1", "fedpaq-curve-0")
    with pytest.raises(ConfigError, match="'fedpaq-curve-0' is not 'fedpaq-curve-1'"):
        Curve.from_json(text)


def test_downloads_and_rounds_are_charged_where_they_are_priced(mnist, curve):
    """Dense models to r clients, and the fixed time, in every round."""
    priced = fedpaq.CostModel.from_ratio(100, downlink_bandwidth=5e4, round_seconds=1000.0)
    free, dear = (curve.axis("seconds", "payload", model) for model in (fedpaq.CostModel.from_ratio(100), priced))
    clients = curve.settings.setting.clients_per_round
    each = 8 * clients * fedpaq.codec.raw_bytes(curve.dimension) / 5e4 + 1000.0
    np.testing.assert_allclose(dear - free, np.broadcast_to(each * np.arange(free.shape[1]), free.shape), rtol=1e-9)
