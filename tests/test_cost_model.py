"""The paper's times: bits over bandwidth, and the slowest of r shifted exponentials."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedpaq
from fedpaq.cost_model import CostModel
from fedpaq.errors import ConfigError


def test_the_ratio_fixes_the_bandwidth():
    model = CostModel.from_ratio(100)
    upload = model.communication_seconds(32 * 785, 785)
    assert upload / (model.shift + 1 / model.scale) == pytest.approx(100)
    assert model.shift == 1 / model.scale


def test_a_bandwidth_is_bits_per_second():
    assert CostModel(bandwidth=1e6).communication_seconds(5e6, 10) == 5.0


def test_compute_time_is_the_slowest_shifted_exponential():
    model = CostModel(bandwidth=1.0, shift=0.3, scale=2.0)
    rounds, r, gradients = 4000, 5, 50
    times = np.array(
        [model.computation_seconds(1, round, np.arange(r), np.full(r, gradients)) for round in range(rounds)]
    )
    # max of r unit exponentials: mean H_r, variance sum 1/i^2
    mean = gradients * (0.3 + sum(1 / i for i in range(1, r + 1)) / 2.0)
    deviation = gradients / 2.0 * math.sqrt(sum(1 / i**2 for i in range(1, r + 1)))
    assert abs(times.mean() - mean) < 5 * deviation / math.sqrt(rounds)
    assert times.min() > gradients * 0.3


def test_accountings_charge_different_bits_for_the_same_payloads(logistic, config):
    bits = {}
    for accounting in ("payload", "fixed-width", "elias"):
        history = fedpaq.train(
            logistic,
            config,
            quantizer=fedpaq.LowPrecision(levels=1),
            cost_model=CostModel.from_ratio(100, accounting=accounting),
        )
        bits[accounting] = history.final.upload_bits
        assert history.final.payload_bytes > 0
    messages = 4 * 5
    assert bits["fixed-width"] == messages * (37 * 2 + 32)
    assert bits["payload"] == 8 * history.final.payload_bytes
    assert bits["elias"] != bits["payload"]


def test_expected_computation_is_the_mean_of_the_slowest():
    model = CostModel(bandwidth=1.0, shift=0.5, scale=2.0)
    draws = np.random.default_rng(0).exponential(0.5, size=(20_000, 5)).max(axis=1) + 0.5
    expected = model.expected_computation_seconds(5, gradients=1)
    assert abs(draws.mean() - expected) < 5 * draws.std() / math.sqrt(20_000)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 40), st.integers(1, 1000))
def test_expected_computation_grows_with_the_clients_and_scales_with_the_gradients(r, gradients):
    model = CostModel(bandwidth=1.0, shift=0.5, scale=2.0)
    seconds = model.expected_computation_seconds(r, gradients)
    assert seconds == pytest.approx(gradients * (0.5 + sum(1 / i for i in range(1, r + 1)) / 2))
    assert model.expected_computation_seconds(r, 2 * gradients) == pytest.approx(2 * seconds)
    assert model.expected_computation_seconds(r + 1, gradients) > seconds


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"ratio": 1e308}, r"^ratio=1e\+308, shift=0.5, scale=2.0: .* a float32 upload 1e\+308 s; choose"),
        ({"ratio": 1e-200}, "a float32 upload 1e-200 s"),
        ({"bandwidth": 1e-300}, r"a bit 1e\+300 s"),
        ({"bandwidth": 1.0, "scale": 1e200, "shift": 0.0}, "a gradient takes 1e-200 s"),
        ({"bandwidth": 1.0, "shift": 1e250}, r"a gradient takes 1e\+250 s"),
    ],
)
def test_times_that_would_overflow_are_refused(values, complaint):
    with pytest.raises(ConfigError, match=complaint):
        CostModel(**values)


@pytest.mark.parametrize("ratio", [1e-100, 1e100])
def test_the_largest_and_the_least_ratio_give_finite_times(ratio):
    seconds = CostModel.from_ratio(ratio).communication_seconds(1e18, 1)
    assert 0 < seconds < math.inf


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({}, "give exactly one"),
        ({"bandwidth": 1.0, "ratio": 1.0}, "give exactly one"),
        ({"bandwidth": 0.0}, "bandwidth=0.0 is not allowed"),
        ({"ratio": float("inf")}, "ratio=inf"),
        ({"ratio": 1.0, "scale": 0.0}, "scale=0.0"),
        ({"ratio": 1.0, "accounting": "payloads"}, "did you mean 'payload'"),
    ],
)
def test_impossible_cost_models_are_refused(arguments, complaint):
    with pytest.raises(ConfigError, match=complaint):
        CostModel(**arguments)
