"""What any server must satisfy, and each in its own way: order, scale, shift, one client, liars, runs apart."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedpaq import Key, LowPrecision
from fedpaq.errors import ConfigError
from fedpaq.quantizers import QuantizedMessage, RawMessage
from fedpaq.server.aggregation import (
    AGGREGATIONS,
    ClippedMean,
    Mean,
    TrimmedMean,
    WeightedMean,
    find_aggregation,
    norm_of,
)

SERVERS = [Mean(), ClippedMean(), ClippedMean(max_norm=3.0), TrimmedMean(trim=0.25)]
BY_NAME = {"argnames": "server", "argvalues": SERVERS, "ids": lambda server: server.name}
rows = arrays(np.float32, st.tuples(st.integers(1, 8), st.integers(1, 4)), elements=st.floats(-1000, 1000, width=32))


def combine(server, values, run_of=None, runs=1):
    """What the server makes of raw messages."""
    arrived = server.start(runs, values.shape[1])
    arrived.add([RawMessage(row) for row in values], np.zeros(len(values), np.int64) if run_of is None else run_of)
    return arrived.mean()


@pytest.mark.parametrize(**BY_NAME)
@given(values=rows, seed=st.integers(0, 100))
@settings(max_examples=20, deadline=None)
def test_the_order_of_clients_does_not_matter(server, values, seed):
    shuffled = np.random.default_rng(seed).permutation(values)
    # Sums of eight doubles of at most 1000 in another order: 8 * 8000 * 2^-53.
    np.testing.assert_allclose(combine(server, shuffled), combine(server, values), rtol=1e-11, atol=1e-10)


@pytest.mark.parametrize(**BY_NAME)
@given(values=rows)
@settings(max_examples=20, deadline=None)
def test_opposite_updates_give_the_opposite(server, values):
    opposite, expected = combine(server, -values), -combine(server, values)
    if isinstance(server, TrimmedMean):  # adds in ascending order, which the signs reverse
        np.testing.assert_allclose(opposite, expected, rtol=1e-11, atol=1e-10)
    else:
        assert np.array_equal(opposite, expected)


@pytest.mark.parametrize("server", [Mean(), ClippedMean(), TrimmedMean(trim=0.25)], ids=lambda server: server.name)
@given(values=rows, exponent=st.integers(-20, 20))
@settings(max_examples=20, deadline=None)
def test_servers_without_a_limit_of_their_own_follow_the_scale(server, values, exponent):
    """A power of two rounds nothing unless a number becomes subnormal."""
    values = np.where(np.abs(values) < 1e-6, 0, values).astype(np.float32)
    expected = np.ldexp(combine(server, values), exponent)
    np.testing.assert_allclose(combine(server, np.ldexp(values, exponent)), expected, rtol=1e-14)


@pytest.mark.parametrize("server", [Mean(), TrimmedMean(trim=0.25)], ids=lambda server: server.name)
def test_a_shift_of_all_clients_shifts_the_result(server):
    values = np.random.default_rng(0).integers(-50, 50, (8, 3)).astype(np.float32)
    assert np.array_equal(combine(server, values + 7), combine(server, values) + 7)


@pytest.mark.parametrize(**BY_NAME)
@pytest.mark.parametrize("clients", [1, 2, 3, 9])
def test_clients_that_agree_are_followed(server, clients):
    update = np.array([1.0, -2.0, 0.5], np.float32)  # norm 2.29, below the limit of 3
    assert np.array_equal(combine(server, np.tile(update, (clients, 1)))[0], update)


@pytest.mark.parametrize(**BY_NAME)
@given(values=rows)
@settings(max_examples=20, deadline=None)
def test_no_coordinate_leaves_the_range_of_the_clients_and_zero(server, values):
    result = combine(server, values)[0]
    slack = 1e-9
    assert np.all(result <= np.maximum(values.max(axis=0), 0) + slack)
    assert np.all(result >= np.minimum(values.min(axis=0), 0) - slack)


def test_a_trimmed_mean_worked_by_hand():
    """Five clients, trim 0.2: the smallest and the largest of each coordinate go."""
    values = np.array([[9, 1], [1, 1], [2, 1], [3, 1], [-9, 6]], np.float32)
    assert combine(TrimmedMean(trim=0.2), values).tolist() == [[2.0, 1.0]]
    assert combine(TrimmedMean(trim=0.19), values).tolist() == [[1.2, 2.0]]  # floor(0.95) = 0: none
    assert combine(TrimmedMean(trim=0.4), values).tolist() == [[2.0, 1.0]]  # the median


def test_a_clipped_mean_worked_by_hand():
    """Norms 5, 10 and 1: the median is 5, so the second is halved; at a limit of 1 the first is a fifth."""
    values = np.array([[3, 4], [6, 8], [0, 1]], np.float32)
    np.testing.assert_allclose(combine(ClippedMean(), values), [[2.0, 3.0]], rtol=1e-15)
    np.testing.assert_allclose(combine(ClippedMean(max_norm=1.0), values), [[0.4, 2.6 / 3]], rtol=1e-15)


@pytest.mark.parametrize("clients", [1, 2, 3, 10, 101])
@pytest.mark.parametrize("trim", [1e-12, 0.1, 0.3, 0.49, 0.5 - 1e-10, math.nextafter(0.5, 0)])
def test_a_share_below_a_half_always_leaves_somebody(trim, clients):
    values = np.arange(clients, dtype=np.float32)[:, None]
    assert combine(TrimmedMean(trim=trim), values)[0, 0] == pytest.approx((clients - 1) / 2)


def test_a_share_that_is_whole_in_decimals_cuts_whole_clients():
    """0.1 * 30 is 3.0000000000000004 and 0.29 * 100 is 28.999999999999996: both mean what they say."""
    for trim, clients, cut in ((0.1, 30, 3), (0.29, 100, 29), (0.3, 10, 3)):
        values = np.zeros((clients, 1), np.float32)
        values[:cut] = 1e6
        assert combine(TrimmedMean(trim=trim), values)[0, 0] == 0.0
        values[cut] = 1e6
        assert combine(TrimmedMean(trim=trim), values)[0, 0] > 0.0


def test_trimming_in_columns_leaves_no_seam(monkeypatch):
    values = np.random.default_rng(3).standard_normal((7, 50)).astype(np.float32)
    expected = combine(TrimmedMean(), values)
    for columns in (1, 7, 49, 50):
        monkeypatch.setattr("fedpaq.server.aggregation.COLUMNS", columns)
        assert np.array_equal(combine(TrimmedMean(), values), expected)


@pytest.mark.parametrize(**BY_NAME)
def test_one_nan_makes_its_run_nan_and_no_other(server):
    values = np.ones((6, 3), np.float32)
    values[4] = np.nan
    result = combine(server, values, np.array([0, 1, 0, 0, 1, 1]), runs=2)
    assert np.array_equal(result[0], np.ones(3)) and np.isnan(result[1]).all()


@pytest.mark.parametrize(**BY_NAME)
def test_quantized_and_raw_messages_of_the_same_values_count_alike(server):
    updates = np.random.default_rng(1).standard_normal((5, 30)).astype(np.float32)
    batch = LowPrecision(4, 8).quantize_batch(updates, [Key(seed=0, client=client) for client in range(5)])
    arrived = server.start(1, 30)
    arrived.add(batch, np.zeros(5, np.int64))
    # dequantize rounds to float32, which the mean of messages does not: one part in 2^24 of a norm.
    raw = combine(server, np.stack([message.dequantize() for message in batch]))
    np.testing.assert_allclose(arrived.mean(), raw, atol=float(batch.norms.max()) * 2.0**-24)


def test_a_norm_is_of_what_a_message_stands_for_not_of_what_it_claims():
    """A liar claims the norm 1 and sends four levels of one: sqrt(4) in truth."""
    liar = QuantizedMessage(np.ones(4, np.int8), np.ones(1, np.float32), 1)
    assert norm_of(liar) == 2.0
    assert norm_of(RawMessage(np.full(4, 3e38, np.float32))) == pytest.approx(6e38)


def test_names_are_distinct_and_lead_to_what_they_name():
    assert [type(find_aggregation(name)) for name in AGGREGATIONS] == [Mean, WeightedMean, ClippedMean, TrimmedMean]
    names = [server.name for server in SERVERS]
    assert names == ["mean", "clipped mean (norm median)", "clipped mean (norm 3)", "trimmed mean (0.25)"]


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (
            lambda: find_aggregation("meen"),
            r"^unknown aggregation 'meen'; known: mean, weighted, clipped, trimmed \(did you mean",
        ),
        (lambda: find_aggregation("krum"), "^unknown aggregation 'krum'; known: mean, weighted, clipped, trimmed$"),
        (lambda: TrimmedMean(trim=0.5), r"^trim=0.5 would leave nothing; choose a share in \(0, 0.5\)$"),
        (lambda: TrimmedMean(trim=True), "^trim=True is not a number; choose a finite number > 0$"),
        (lambda: ClippedMean(max_norm="1"), "^max_norm='1' is not a number; choose a finite number > 0$"),
        (lambda: ClippedMean(max_norm=0), "^max_norm=0 is not allowed; choose a finite number > 0$"),
    ],
)
def test_what_cannot_work_is_refused_in_words(make, complaint):
    with pytest.raises(ConfigError, match=complaint):
        make()
