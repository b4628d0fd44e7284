"""Messages and batches of them: what they stand for, in plain loops; views, equality, any layout."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codec_cases import arithmetic_message, gaussian_message
from fedpaq import Key, LowPrecision, codec
from fedpaq.quantizers import QuantizedBatch, QuantizedMessage, RawMessage, message
from fedpaq.quantizers.message import level_dtype, num_buckets
from fedpaq.server.mean import add_messages


@st.composite
def quantized(draw):
    """A message of any levels and buckets, its dimension often beyond one bucket."""
    levels = draw(st.sampled_from([1, 3, 127, 128, 32767]))
    dimension, bucket_size = draw(st.integers(1, 60)), draw(st.none() | st.integers(1, 70))
    signed = draw(st.lists(st.integers(-levels, levels), min_size=dimension, max_size=dimension))
    count = num_buckets(dimension, bucket_size)
    norms = draw(st.lists(st.floats(0, 2.0**100, width=32), min_size=count, max_size=count))
    return QuantizedMessage(np.array(signed, level_dtype(levels)), np.array(norms, np.float32), levels, bucket_size)


def meant(quantized_message):
    """What a message stands for, coordinate by coordinate: norm of its bucket / s * level."""
    width = quantized_message.bucket_size or quantized_message.dimension
    return [
        float(quantized_message.norms[i // width]) / quantized_message.levels * int(level)
        for i, level in enumerate(quantized_message.signed_levels)
    ]


@given(quantized())
@settings(max_examples=50, deadline=None)
def test_a_message_stands_for_norm_over_s_times_level(one):
    assert np.array_equal(one.dequantize(), np.array(meant(one), np.float32))
    assert one.dequantize().dtype == np.float32 and one.dequantize().shape == (one.dimension,)


@given(quantized(), st.floats(-1e3, 1e3))
@settings(max_examples=50, deadline=None)
def test_adding_adds_the_weighted_meaning_in_double_precision(one, weight):
    total = np.linspace(-1, 1, one.dimension)
    before = total.copy()
    one.add_to(total, weight)
    # One rounding each in unit * weight, * level and +: four units in the last place of the largest term, or of the
    # smallest numbers there are.
    expected = np.array(meant(one)) * weight
    assert np.all(np.abs(total - before - expected) <= 2.0**-50 * (np.abs(expected) + np.abs(before)) + 1e-300)
    untouched = one.signed_levels == 0
    assert np.array_equal(total[untouched], before[untouched])


@given(quantized())
@settings(max_examples=30, deadline=None)
def test_adding_and_taking_away_leaves_nothing(one):
    total = np.zeros(one.dimension)
    one.add_to(total, 1.0)
    one.add_to(total, -1.0)
    assert not total.any()


@pytest.mark.parametrize("bucket_size", [None, 5, 100])
def test_long_messages_are_dequantized_in_chunks_without_a_seam(bucket_size, monkeypatch):
    one = arithmetic_message(1000, 9, 2, bucket_size)
    expected = one.dequantize()
    for chunk in (1, 7, 999, 1000, 1001):
        monkeypatch.setattr(message, "CHUNK", chunk)
        assert np.array_equal(one.dequantize(), expected)


@pytest.mark.parametrize(
    ("dimension", "bucket_size", "count"),
    [(1, None, 1), (10**9, None, 1), (10, 10, 1), (10, 3, 4), (9, 3, 3), (1, 2**62, 1), (0, 3, 0)],
)
def test_the_last_bucket_may_be_short(dimension, bucket_size, count):
    assert num_buckets(dimension, bucket_size) == count


def test_levels_take_one_byte_up_to_127_and_two_beyond():
    assert [level_dtype(levels) for levels in (1, 127, 128, 32767)] == [np.int8, np.int8, np.int16, np.int16]
    for levels in (127, 128, 32767):
        assert np.iinfo(level_dtype(levels)).max >= levels and np.iinfo(level_dtype(levels)).min <= -levels


def test_messages_are_equal_when_every_field_is():
    one = QuantizedMessage(np.array([1, 0], np.int8), np.array([2.0], np.float32), 1)
    assert one == dataclasses.replace(one, signed_levels=one.signed_levels.copy(), norms=one.norms.copy())
    others = [
        dataclasses.replace(one, levels=2),
        dataclasses.replace(one, bucket_size=2),
        dataclasses.replace(one, norms=np.array([2.5], np.float32)),
        dataclasses.replace(one, norms=np.array([2.0, 2.0], np.float32)),
        dataclasses.replace(one, signed_levels=np.array([1, 1], np.int8)),
        dataclasses.replace(one, signed_levels=np.array([1, 0, 0], np.int8)),
        RawMessage(np.array([2.0, 0.0], np.float32)),
        "message",
    ]
    assert all(one != other and other != one for other in others)


def test_raw_messages_are_equal_to_the_bit():
    zeros, minus = RawMessage(np.zeros(2, np.float32)), RawMessage(np.array([0.0, -0.0], np.float32))
    nan = RawMessage(np.full(2, np.nan, np.float32))
    assert zeros == RawMessage(np.zeros(2, np.float32)) and zeros != minus
    assert nan == RawMessage(nan.values.copy()) and zeros != RawMessage(np.zeros(3, np.float32))


@pytest.mark.parametrize("weight", [1.0, -2.5, 0.0])
def test_a_raw_message_adds_its_float32_values_in_double_precision(weight):
    values = np.array([1e-8, -3.0, 2.0**24 + 2], np.float32)
    total = np.ones(3)
    RawMessage(values).add_to(total, weight)
    assert total.tolist() == [1.0 + weight * float(value) for value in values]


def test_messages_cannot_be_reassigned():
    for one in (gaussian_message(3, 1), RawMessage(np.ones(2, np.float32))):
        with pytest.raises(dataclasses.FrozenInstanceError):
            one.levels = 5


def batch_of(count=6, dimension=50, levels=3, bucket_size=None):
    updates = np.random.default_rng(1).standard_normal((count, dimension)).astype(np.float32)
    return LowPrecision(levels, bucket_size).quantize_batch(updates, [Key(seed=i) for i in range(count)])


def test_a_batch_is_the_sequence_of_its_messages():
    batch = batch_of()
    assert len(batch) == 6 and batch.dimension == 50
    assert list(batch) == [batch[i] for i in range(6)] and batch[-1] == batch[5]
    assert batch[2] in batch and batch.index(batch[4]) == 4
    assert list(reversed(batch)) == list(batch)[::-1]
    with pytest.raises(IndexError):
        batch[6]


def test_a_message_of_a_batch_is_a_view_of_it():
    batch = batch_of()
    assert np.shares_memory(batch[3].signed_levels, batch.signed_levels)
    assert np.shares_memory(batch[1:3].norms, batch.norms)


PARTS = {
    "every second": slice(None, None, 2),
    "backwards": slice(None, None, -1),
    "none": slice(3, 3),
    "by number": np.array([5, 0, 0]),
    "all": slice(None),
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("bucket_size", [None, 8])
def test_any_part_of_a_batch_is_counted_added_and_encoded_as_its_messages_are(part, bucket_size):
    batch = batch_of(bucket_size=bucket_size)
    chosen = batch[PARTS[part]]
    messages = [batch[int(i)] for i in np.arange(6)[PARTS[part]]]
    assert list(chosen) == messages
    assert chosen.counts.tolist() == [np.count_nonzero(one.signed_levels) for one in messages]
    assert codec.encode_batch(chosen) == [codec.encode(one) for one in messages]
    total, expected = np.zeros((1, 50)), np.zeros(50)
    add_messages(chosen, np.zeros(len(chosen), np.int64), total)
    for one in messages:
        one.add_to(expected)
    assert np.array_equal(total[0], expected)


@pytest.mark.parametrize("levels", [3, 300])
def test_levels_may_be_read_only_or_out_of_order_in_memory(levels):
    batch = batch_of(levels=levels)
    frozen = np.frombuffer(batch.signed_levels.tobytes(), batch.signed_levels.dtype).reshape(6, 50)
    by_column = np.asfortranarray(batch.signed_levels)
    for rows in (frozen, by_column):
        other = QuantizedBatch(rows, batch.norms, levels)
        assert list(other) == list(batch) and codec.encode_batch(other) == codec.encode_batch(batch)
        total, expected = np.zeros((2, 1, 50))
        add_messages(other, np.zeros(6, np.int64), total)
        add_messages(batch, np.zeros(6, np.int64), expected)
        assert np.array_equal(total, expected)
    assert codec.encode(QuantizedMessage(frozen[0], batch.norms[0], levels)) == codec.encode(batch[0])
    assert codec.encode(QuantizedMessage(by_column[0], batch.norms[0], levels)) == codec.encode(batch[0])
