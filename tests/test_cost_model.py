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
        ({"ratio": 1e308}, r"^ratio=1e\+308, shift=0.5, scale=2.0, .* a float32 upload takes 1e\+308 s; choose"),
        ({"ratio": 1e-200}, "a float32 upload takes 1e-200 s"),
        ({"bandwidth": 1e-300}, r"a bit takes 1e\+300 s"),
        ({"bandwidth": 1.0, "scale": 1e200, "shift": 0.0}, "a gradient takes 1e-200 s"),
        ({"bandwidth": 1.0, "shift": 1e250}, r"a gradient takes 1e\+250 s"),
        ({"bandwidth": 1.0, "downlink_bandwidth": 1e-200}, r"a bit down takes 1e\+200 s"),
        ({"bandwidth": 1.0, "round_seconds": 1e200}, r"a round takes 1e\+200 s"),
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
        ({"ratio": 1.0, "downlink_bandwidth": 0.0}, "downlink_bandwidth=0.0 is not allowed"),
        ({"ratio": 1.0, "round_seconds": -1.0}, "round_seconds=-1.0 is not allowed"),
        ({"ratio": 1.0, "slow_share": 1.5}, r"slow_share=1.5 is not a share of the clients; choose 0\.\.1"),
        ({"ratio": 1.0, "slow_factor": 0.5}, "slow_factor=0.5 is out of range"),
        ({"ratio": 1.0, "accounting": np.ones(2)}, "unknown accounting array"),
    ],
)
def test_impossible_cost_models_are_refused(arguments, complaint):
    with pytest.raises(ConfigError, match=complaint):
        CostModel(**arguments)


NOT_NUMBERS = [True, "1", 1j, [1.0], np.ones(2), np.array(1.0), math.nan, math.inf, -1]


@pytest.mark.parametrize("bad", NOT_NUMBERS, ids=str)
@pytest.mark.parametrize(
    "name", ["bandwidth", "ratio", "shift", "scale", "downlink_bandwidth", "round_seconds", "slow_share", "slow_factor"]
)
def test_what_is_not_a_number_in_range_is_refused_by_name(name, bad):
    with pytest.raises(ConfigError, match=rf"^{name}="):
        CostModel(**{"ratio": None if name == "bandwidth" else 1.0, name: bad})


@pytest.mark.parametrize("name", ["shared_uplink", "shared_downlink"])
def test_a_link_is_shared_or_not(name):
    for bad in ("no", 0, None, math.nan, np.ones(2)):
        with pytest.raises(ConfigError, match=f"^{name}=.* is neither True nor False; choose one of them"):
            CostModel(ratio=1.0, **{name: bad})
    assert CostModel(ratio=1.0, **{name: np.bool_(False)}) == CostModel(ratio=1.0, **{name: False})


def test_downloads_and_rounds_are_free_unless_they_are_priced(logistic, config):
    plain, free = (fedpaq.train(logistic, config, cost_model=CostModel(bandwidth=1e4, **more)) for more in FREE)
    assert [record.seconds for record in plain.records] == [record.seconds for record in free.records]


FREE = ({}, {"round_seconds": 0.0, "shared_downlink": False, "slow_share": 0.5, "slow_factor": 1.0})


@pytest.mark.parametrize("shared", [True, False])
def test_a_run_is_charged_for_each_round_and_its_downloads(logistic, config, shared):
    """Against the record of a run that pays for uploads only: dense models, r of them or one, and 5 s."""
    paper = fedpaq.train(logistic, config, cost_model=CostModel(bandwidth=1e4))
    priced = CostModel(bandwidth=1e4, downlink_bandwidth=1e3, round_seconds=5.0, shared_downlink=shared)
    history = fedpaq.train(logistic, config, cost_model=priced)
    for before, record in zip(paper.records, history.records, strict=True):
        received = record.download_bytes / (1 if shared else config.clients_per_round)
        assert record.seconds == pytest.approx(before.seconds + 8 * received / 1e3 + 5.0 * record.round)
        assert record.computation_seconds == before.computation_seconds
    assert history.cost_model["downlink_bandwidth"] == 1e3


def test_with_uplinks_of_their_own_uploads_take_as_long_as_one(logistic, config):
    shared, own = (
        fedpaq.train(logistic, config, cost_model=CostModel(bandwidth=1e4, shared_uplink=shared)).final
        for shared in (True, False)
    )
    uploading = 8 * shared.payload_bytes / 1e4
    assert shared.seconds - shared.computation_seconds == pytest.approx(uploading)
    assert own.seconds - own.computation_seconds == pytest.approx(uploading / config.clients_per_round)


@pytest.mark.parametrize(("share", "num_clients"), [(0.1, 50), (0.29, 100), (1.0, 7), (0.0, 9), (0.5, 5)])
def test_a_share_of_the_clients_is_slow_and_always_the_same(share, num_clients):
    slow = CostModel(ratio=1.0, slow_share=share, slow_factor=2.0).is_slow(np.arange(num_clients))
    assert slow.sum() == math.floor(round(share * num_clients, 9))
    gaps = np.diff(np.flatnonzero(slow))
    assert len(gaps) == 0 or gaps.max() - gaps.min() <= 1  # evenly spread


@pytest.mark.parametrize("r", [1, 4, 10])
def test_the_expected_time_with_slow_clients_is_the_mean_of_drawn_rounds(r):
    """Four of ten clients compute thrice as long; 4000 rounds, within 5 standard errors."""
    model = CostModel(bandwidth=1.0, shift=0.5, scale=2.0, slow_share=0.4, slow_factor=3.0)
    generator = np.random.default_rng(0)
    times = np.array(
        [
            model.computation_seconds(0, k, generator.permutation(10)[:r].astype(np.int64), np.full(r, 7))
            for k in range(4000)
        ]
    )
    expected = model.expected_computation_seconds(r, 7, num_clients=10)
    assert abs(times.mean() - expected) < 5 * times.std() / math.sqrt(4000)


def test_slow_clients_that_are_not_slow_or_all_slow_have_a_closed_form():
    paper = CostModel(ratio=1.0, shift=0.3, scale=4.0).expected_computation_seconds(5, 10)
    near = CostModel(ratio=1.0, shift=0.3, scale=4.0, slow_share=0.5, slow_factor=1 + 1e-12)
    assert near.expected_computation_seconds(5, 10, 20) == pytest.approx(paper)
    for num_clients in (None, 20):
        all_slow = CostModel(ratio=1.0, shift=0.3, scale=4.0, slow_share=1.0, slow_factor=3.0)
        assert all_slow.expected_computation_seconds(5, 10, num_clients) == pytest.approx(3 * paper)
