"""encode, encode_batch, decode, accumulate: nothing is lost, whatever the message."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedpaq
from codec_cases import arithmetic_message, gaussian_message, uneven_message
from fedpaq.codec import accumulate, decode, encode, encode_batch, level_code, measure_batch, read_header
from fedpaq.codec.frame import RAW
from fedpaq.errors import ConfigError
from fedpaq.kernels import numba as compiled
from fedpaq.quantizers import Identity, Key, LowPrecision, QuantizedBatch, QuantizedMessage, RawMessage


@st.composite
def messages(draw):
    levels = draw(st.sampled_from([1, 2, 5, 15, 16, 127, 128, 32767]))
    dimension = draw(st.integers(1, 700))
    bucket_size = draw(st.none() | st.integers(1, 900))
    pool = draw(st.lists(st.integers(-levels, levels), min_size=1, max_size=8))
    zeros = draw(st.integers(0, 60))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    signed = rng.choice(np.array(pool + [0] * zeros), dimension)
    buckets = 1 if bucket_size is None else -(-dimension // bucket_size)
    norms = rng.random(buckets).astype(np.float32)
    return QuantizedMessage(signed.astype(np.int8 if levels <= 127 else np.int16), norms, levels, bucket_size)


@given(messages())
@settings(max_examples=150, deadline=None)
def test_decoding_returns_the_message(message):
    payload = encode(message)
    decoded = decode(payload, dimension=message.dimension)
    assert decoded == message
    assert decoded.signed_levels.dtype == message.signed_levels.dtype
    assert encode(decoded) == payload


@given(st.lists(messages(), max_size=4))
@settings(max_examples=100, deadline=None)
def test_measured_lengths_are_those_of_the_payloads(several):
    assert measure_batch(several).tolist() == [len(payload) for payload in encode_batch(several)]
    for message in several:
        batch = QuantizedBatch.stack([message, message])
        assert measure_batch(batch).tolist() == [len(encode(message))] * 2


@given(messages(), st.floats(-10, 10))
@settings(max_examples=100, deadline=None)
def test_accumulate_equals_decoding_and_adding_to_the_bit(message, weight):
    payload = encode(message)
    start = np.random.default_rng(0).standard_normal(message.dimension)
    total, expected = start.copy(), start.copy()
    accumulate(payload, total, weight)
    decode(payload).add_to(expected, weight)
    assert np.array_equal(total.view(np.uint64), expected.view(np.uint64))


@pytest.mark.parametrize("bucket_size", [None, 1, 7, 100, 5000])
@pytest.mark.parametrize("levels", [1, 5, 64, 300, 32767])
@pytest.mark.parametrize("dimension", [1, 2, 785, 3001])
def test_every_shape_survives(dimension, levels, bucket_size):
    for message in (gaussian_message(dimension, levels, bucket_size), uneven_message(dimension, levels, bucket_size)):
        assert decode(encode(message), dimension=dimension) == message


def test_without_numba_the_bytes_are_the_same(monkeypatch):
    cases = [uneven_message(400, levels, bucket) for levels in (1, 10, 300) for bucket in (None, 64)]
    payloads = encode_batch(cases)
    monkeypatch.setattr(compiled, "load", lambda name: None)
    assert [encode(message) for message in cases] == payloads
    assert measure_batch(cases).tolist() == [len(payload) for payload in payloads]
    assert [decode(payload) for payload in payloads] == cases


@pytest.mark.parametrize("dimension", [1, 1000])
def test_all_zeros_cost_only_the_header(dimension):
    message = QuantizedMessage(np.zeros(dimension, np.int8), np.zeros(1, np.float32), 1)
    payload = encode(message)
    assert len(payload) <= 17
    assert decode(payload) == message


def test_a_single_huge_coordinate_survives():
    update = np.zeros(1000, np.float32)
    update[617] = -3e38
    for levels in (1, 32767):
        message = LowPrecision(levels).quantize(update, key=Key(seed=0))
        decoded = decode(encode(message))
        assert decoded == message
        assert decoded.dequantize()[617] == pytest.approx(-3e38)


def test_a_batch_may_mix_codes_kinds_and_shapes(monkeypatch):
    monkeypatch.setattr(level_code, "BLOCK_NONZEROS", 500)
    mixed = [gaussian_message(2000, 45, seed=seed) for seed in range(3)]
    mixed += [arithmetic_message(2000, 45, period) for period in (1, 5000, 2)]
    mixed += [RawMessage(np.arange(5, dtype=np.float32)), gaussian_message(785, 1), RawMessage(np.ones(2, np.float32))]
    payloads = encode_batch(mixed)
    assert payloads == [encode(message) for message in mixed]
    assert [decode(payload) for payload in payloads] == mixed
    assert encode_batch([]) == [] and measure_batch([]).tolist() == []
    mixed.append(fedpaq.Rotated(bits=1).quantize(np.ones(300, np.float32), key=Key(seed=0)))  # cannot tell without
    assert measure_batch(mixed).tolist() == [len(encode(message)) for message in mixed]


@pytest.mark.usefixtures("spread_over_threads")
def test_a_batch_spread_over_threads_is_equal_to_one_by_one():
    batch = [gaussian_message(60_000, 40, seed=seed) for seed in range(4)]
    assert encode_batch(batch) == [encode(message) for message in batch]


def test_identity_is_sent_as_float32():
    message = Identity().quantize(np.array([1.5, -0.0, 1e-45], np.float32), key=Key(seed=0))
    payload = encode(message)
    assert read_header(payload).code == RAW
    assert len(payload) == 4 + 12 + 4
    assert decode(payload, dimension=3) == message
    total = np.ones(3)
    accumulate(payload, total, 2.0)
    assert total[0] == 4.0


def test_encoding_a_thousand_messages_holds_memory_flat():
    batch = [gaussian_message(785, 1, seed=seed) for seed in range(10)]
    for message in batch:
        decode(encode(message))
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(100):
        for message in batch:
            decode(encode(message))
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 20_000


def test_encode_refuses_what_is_not_a_message():
    one = np.ones(1, np.float32)
    with pytest.raises(ConfigError, match="exceeds levels=1"):
        encode(QuantizedMessage(np.array([0, 2], np.int8), one, 1))
    with pytest.raises(ConfigError, match="norms"):
        encode(QuantizedMessage(np.array([0, 1], np.int8), np.array([np.nan], np.float32), 1))
    with pytest.raises(ConfigError, match="norms"):
        encode(QuantizedMessage(np.array([0, 1], np.int8), -one, 1))
    with pytest.raises(ConfigError, match="norms"):
        encode(QuantizedMessage(np.array([0, 1], np.int8), np.ones(3, np.float32), 1, bucket_size=1))
    with pytest.raises(ConfigError, match="NaN"):
        encode(RawMessage(np.array([np.inf], np.float32)))
    with pytest.raises(ConfigError, match="dimension=0"):
        encode(RawMessage(np.zeros(0, np.float32)))


def test_accumulate_refuses_a_wrong_total_or_weight():
    payload = encode(gaussian_message(10, 1))
    with pytest.raises(ConfigError, match="total"):
        accumulate(payload, np.zeros(10, np.float32))
    with pytest.raises(ConfigError, match="weight"):
        accumulate(payload, np.zeros(10), math.nan)
