"""Metrics: what clients report, and what a round costs."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpaq import CostModel
from fedpaq.flower.metrics import Pricing, mean_metrics, round_metrics
from fedpaq.flower.replies import Rules
from fedpaq.flower.rounds import OpenRound
from flower.made_replies import SIZE, WITH_EXACT, closed_with, payload, question, reply_to, update

pytestmark = pytest.mark.flower


def test_a_round_without_replies_costs_nothing_and_divides_by_nothing():
    closed = closed_with([])
    metrics = round_metrics(closed, SIZE, Pricing(CostModel(bandwidth=8.0), 10, seed=0))
    assert metrics["fedpaq-clients-late"] == 3 and metrics["fedpaq-clients-counted"] == 0
    assert metrics["fedpaq-times-smaller"] == 0.0 and metrics["fedpaq-modelled-seconds"] == 0.0


def test_the_metrics_of_a_round_add_up():
    data = payload(update())
    closed = closed_with([(0, data), (1, data), (2, b"junk")])
    metrics = round_metrics(closed, SIZE, None)
    counts = [metrics[f"fedpaq-clients-{kind}"] for kind in ("counted", "rejected", "late")]
    assert counts == [2, 1, 0] and sum(counts) == metrics["fedpaq-clients-asked"]
    assert metrics["fedpaq-payload-bytes"] == 2 * len(data) and metrics["fedpaq-float32-bytes"] == 8 * SIZE
    assert metrics["fedpaq-times-smaller"] == pytest.approx(4 * SIZE / len(data))
    assert "fedpaq-modelled-seconds" not in metrics


def test_modelled_time_is_the_uploads_plus_the_slowest_client():
    closed = closed_with([(0, payload(update())), (2, payload(update()))])
    model = CostModel(bandwidth=100.0, shift=0.5, scale=2.0)
    bits = 8 * sum(len(upload.payload) for upload in closed.counted)
    clients, gradients = np.array([0, 2]), np.array([10, 10])
    slowest = model.computation_seconds(4, 2, clients, gradients)
    assert Pricing(model, None, seed=4).seconds(closed, SIZE) == bits / 100.0
    assert Pricing(model, 10, seed=4).seconds(closed, SIZE) == pytest.approx(bits / 100.0 + slowest)


@pytest.mark.parametrize("shared", [True, False])
def test_modelled_time_charges_exact_bytes_downloads_and_the_round_itself(shared):
    data, exact = payload(update(0, 3)), bytes(WITH_EXACT.exact_bytes)
    asked = {client: question(client) for client in range(3)}
    replies = [reply_to(asked[client], data, exact) for client in (0, 2)]
    closed = replace(OpenRound(1, asked).close(replies, Rules(WITH_EXACT)), downloads=[100, 40, 100])
    model = CostModel(
        bandwidth=10.0, downlink_bandwidth=1000.0, round_seconds=5.0, shared_uplink=shared, shared_downlink=shared
    )
    up = 2 * 8 * (len(data) + 16) / 10.0 / (1 if shared else 2)
    down = 8 * (240 if shared else 100) / 1000.0
    assert Pricing(model, None, seed=0).seconds(closed, 3) == pytest.approx(5.0 + up + down)
    nobody = OpenRound(1, asked).close([], Rules(WITH_EXACT))
    assert Pricing(model, 10, seed=0).seconds(nobody, 3) == 5.0


def means_of(reports, weighted_by):
    return dict(mean_metrics([RecordDict({"metrics": report}) for report in reports], weighted_by))


weighted = st.lists(st.tuples(st.floats(-100, 100), st.integers(1, 50)), min_size=1, max_size=6)


@given(weighted)
@settings(max_examples=50, deadline=None)
def test_a_mean_metric_is_that_of_the_examples_one_by_one(pairs):
    reports = [MetricRecord({"loss": loss, "n": count}) for loss, count in pairs]
    examples = [loss for loss, count in pairs for _ in range(count)]
    assert means_of(reports, "n") == {"loss": pytest.approx(np.mean(examples), abs=1e-9)}


@pytest.mark.parametrize("weights", [(0, 0), (-1, -2), (math.nan, math.inf), (None, None), ([1], [2])])
def test_without_a_usable_weight_all_count_alike(weights):
    reports = [
        MetricRecord({"loss": loss} | ({} if weight is None else {"n": weight}))
        for loss, weight in zip((1.0, 2.0), weights, strict=True)
    ]
    assert means_of(reports, "n") == {"loss": 1.5}


def test_only_metrics_that_all_report_in_one_shape_are_averaged():
    reports = [
        MetricRecord({"loss": 1.0, "mine": 5, "list": [1.0, 2.0], "ragged": [1], "n": 1}),
        MetricRecord({"loss": 3.0, "list": [3.0, 6.0], "ragged": [1, 2], "n": 3}),
    ]
    assert means_of(reports, "n") == {"loss": 2.5, "list": [2.5, 5.0]}
    assert means_of([], "n") == {}


def test_a_client_with_no_weight_beside_weighted_ones_does_not_count():
    reports = [MetricRecord({"loss": 1.0, "n": 2}), MetricRecord({"loss": 9.0, "n": -4})]
    assert means_of(reports, "n") == {"loss": 1.0}


def test_times_smaller_counts_the_exact_arrays_on_both_sides():
    data, exact = payload(update(0, 3)), bytes(WITH_EXACT.exact_bytes)
    closed = OpenRound(1, {0: question(0)}).close([reply_to(question(0), data, exact)], Rules(WITH_EXACT))
    metrics = round_metrics(closed, WITH_EXACT.dimension, None)
    assert metrics["fedpaq-exact-bytes"] == 16 and metrics["fedpaq-float32-bytes"] == 12
    assert metrics["fedpaq-times-smaller"] == (12 + 16) / (len(data) + 16)
