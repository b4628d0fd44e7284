"""The paper's times: bits over bandwidth, and the slowest of r shifted exponentials."""

from __future__ import annotations

import math

import numpy as np
import pytest

import fedpaq
from fedpaq.cost_model import CostModel
from fedpaq.errors import ConfigError


def test_the_ratio_fixes_the_bandwidth():
    model = CostModel.from_ratio(100)
    upload = model.communication_seconds(32 * 785, 785)
    assert upload / (model.shift + 1 / model.scale) == pytest.approx(100)
    assert model.shift == 1 / model.scale


def test_a_bandwidth_is_bits_a_second():
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
