"""Code lengths without encoding: what a coder that only adds up logarithms counts, decision by decision."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from codec_cases import arithmetic_message, gaussian_message, uneven_message
from fedpaq.codec import estimate, estimate_payload_bytes, frequencies, gap_code
from fedpaq.codec.adaptive_integers import TABLE_SIZE, code_integer, prior_table
from fedpaq.codec.block_code import classify, count_tokens
from fedpaq.codec.code_length import Decisions, bit_length, integer_decisions, total_bits
from fedpaq.codec.estimate import stream_bytes
from fedpaq.codec.range_coder import RangeEncoder
from fedpaq.codec.tokens import token_of
from fedpaq.errors import ConfigError
from fedpaq.server import gap_length


class BitCounter:
    """A coder that sends nothing and adds up what sending would cost; the model is told every value."""

    def __init__(self):
        self.bits = 0.0

    def code(self, probability, bit):
        self.bits -= math.log2((probability if bit else 65536 - probability) / 65536)
        return bit

    def raw(self, count, value):
        self.bits += count
        return value


def counted_bits(message):
    """The bits of a message's gap code, by walking it."""
    at = np.flatnonzero(message.signed_levels)
    nonzeros = list(zip(at.tolist(), message.signed_levels[at].tolist(), strict=True))
    counter = BitCounter()
    width = message.bucket_size or message.dimension
    gap_code.walk(counter, message.dimension, message.levels, width, len(nonzeros), nonzeros)
    return counter.bits


def flat(messages):
    """Owners, ends, positions and values of the non-zeros of alike messages."""
    at = [np.flatnonzero(message.signed_levels) for message in messages]
    values = np.concatenate([message.signed_levels[part] for message, part in zip(messages, at, strict=True)])
    counts = np.array([len(part) for part in at])
    owners = np.repeat(np.arange(len(at)), counts)
    return owners, np.concatenate([[0], np.cumsum(counts)]), np.concatenate(at), values.astype(np.int64)


BATCHES = {
    "sparse": [gaussian_message(900, 1, seed=seed) for seed in range(3)],
    "levels": [uneven_message(700, 12, seed=seed) for seed in range(3)],
    "buckets": [gaussian_message(300, 50, 32, seed=seed) for seed in range(2)],
    "wide": [arithmetic_message(200, 32767, period) for period in (1, 2, 50)],
    "halved": [arithmetic_message(6000, 2, 1), arithmetic_message(6000, 2, 5)],
    "some empty": [arithmetic_message(50, 3, period) for period in (10**9, 2, 10**9, 10**9)],
    "one coordinate": [arithmetic_message(1, 4, 1), arithmetic_message(1, 4, 10**9)],
}


@pytest.mark.parametrize("name", BATCHES)
def test_the_estimate_is_the_walk_s_count_and_the_frame(name):
    messages = BATCHES[name]
    first = messages[0]
    _, ends, positions, values = flat(messages)
    bytes_ = estimate_payload_bytes(
        ends, positions, values, dimension=first.dimension, levels=first.levels, bucket_size=first.bucket_size
    )
    counts = np.diff(ends)
    for size, count, message in zip(bytes_, counts, messages, strict=True):
        varints = [first.dimension, first.levels, first.bucket_size or 0, int(count)]
        digits = sum(max(1, -(-value.bit_length() // 7)) for value in varints)  # seven bits a byte
        frame = 3 + digits + 4 * message.norms.size + 4
        assert size - frame == pytest.approx(float(stream_bytes(np.float64(counted_bits(message)))), abs=1e-6)


@pytest.mark.parametrize("name", BATCHES)
def test_lengths_on_tensors_are_the_walk_s_count(name):
    messages = BATCHES[name]
    first = messages[0]
    owners, ends, positions, values = flat(messages)
    owners, positions, values, counts = map(torch.from_numpy, (owners, positions, values, np.diff(ends)))
    bits = gap_length.gap_bits(owners, positions, values, counts, first.dimension)
    if first.levels > 1:
        guess = gap_code.expected_excess(first.levels, first.bucket_size or first.dimension)
        bits = bits + gap_length.magnitude_bits(owners, values, counts, guess)
    expected = [counted_bits(message) for message in messages]
    # Each logarithm is rounded to 2^-20 bits: at most 2^-21 off, ten decisions a non-zero.
    np.testing.assert_allclose(bits.numpy(), expected, atol=1e-6 + len(owners) * 10 * 2.0**-21)


integers = st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 2**40)), min_size=1, max_size=40)


@given(integers, st.sampled_from([4, 8]))
@settings(max_examples=50, deadline=None)
def test_the_decisions_of_integers_cost_what_coding_them_costs(pairs, weight):
    counter, states = BitCounter(), prior_table(weight).tolist()
    for mean, value in pairs:
        code_integer(counter, states, 0, mean, value)
    means, values = np.array(pairs, np.int64).T
    decisions, raw = integer_decisions(np.zeros(len(pairs), np.int64), 0, means, values)
    bits = total_bits(decisions, prior_table(weight), 1)[0] + raw.sum()
    assert bits == pytest.approx(counter.bits, rel=1e-12, abs=1e-9)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 1)), max_size=80))
@settings(max_examples=40, deadline=None)
def test_each_owner_learns_alone_whatever_the_order_between_owners(triples):
    initial = prior_table(8)[:4]

    def bits_of(some):
        owners, contexts, bits = np.array(some, np.int64).reshape(-1, 3).T
        return total_bits([Decisions(owners, contexts, bits)], initial, 3)

    by_owner = sorted(triples, key=lambda triple: triple[0])  # stable: order within an owner is kept
    assert np.allclose(bits_of(triples), bits_of(by_owner), rtol=1e-12)
    for owner in range(3):
        alone = bits_of([triple for triple in triples if triple[0] == owner])
        assert alone[owner] == pytest.approx(bits_of(triples)[owner], rel=1e-12)


def test_a_context_is_halved_as_often_as_coding_halves_it():
    """3,000 decisions in one context: halved at the 1,016th and then every 512th."""
    bits = (np.arange(3000) * 7919 % 10 < 3).astype(np.int64)
    counter, states = BitCounter(), prior_table(8).tolist()
    for bit in bits.tolist():
        gap_code.code_bit(counter, states, 0, bit)
    zeros = np.zeros(len(bits), np.int64)
    assert total_bits([Decisions(zeros, zeros, bits)], prior_table(8), 1)[0] == pytest.approx(counter.bits)


@given(st.integers(0, 2**53 - 1))
@settings(max_examples=50, deadline=None)
def test_bit_lengths_are_python_s(value):
    around = [max(value - 1, 0), value, min(value + 1, 2**53 - 1)]
    assert bit_length(np.array(around, np.int64)).tolist() == [each.bit_length() for each in around]


def test_no_decisions_cost_nothing():
    nothing = np.zeros(0, np.int64)
    assert total_bits([Decisions(nothing, nothing, nothing)], prior_table(8), 2).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("levels", [3, 30, 2000])
def test_the_side_stream_s_estimate_is_the_walk_s_count(levels):
    row = uneven_message(3000, levels).signed_levels
    classes = classify(row)
    tables = frequencies.normalise(count_tokens(row, classes))
    tokens = token_of(-levels) + 1
    counter = BitCounter()
    frequencies.pass_side(counter, len(classes), tokens, (classes, tables))
    expected = float(stream_bytes(np.float64(counter.bits)))
    assert estimate._side_bytes(classes, tables, tokens) == pytest.approx(expected, abs=1e-6)
    assert abs(len(frequencies.encode_side(classes.astype(np.uint8), tables, tokens)) - expected) <= 1


@pytest.mark.parametrize("dimension", [1, 64, 65, 255, 256, 257, 1000])
def test_tokens_counted_from_non_zeros_are_those_counted_from_levels(dimension):
    for row in (
        uneven_message(dimension, 40).signed_levels,
        np.ones(dimension, np.int8),
        np.arange(dimension) % 3 - 1,
    ):
        classes, at = classify(row), np.flatnonzero(row)
        values = row[at].astype(np.int64)
        assert np.array_equal(
            estimate._token_counts(at, values, classes, dimension), count_tokens(row, classes)
        )


def test_a_stream_s_mean_length_lies_in_its_last_byte():
    bits = np.arange(0, 200, 0.25)
    lengths = stream_bytes(bits)
    whole = np.ceil(bits / 8)
    assert lengths[0] == 0 and np.all(lengths <= whole) and np.all(lengths[1:] > whole[1:] - 1)
    assert np.all(np.diff(lengths) > 0)


def test_a_stream_s_mean_length_is_the_mean_over_where_it_begins():
    """Streams of the same last decision after random raw bits; five standard errors of 400 of them."""
    rng = np.random.default_rng(4)
    for bits in (3, 6):
        lengths = []
        for _ in range(400):
            coder = RangeEncoder()
            coder.raw(32, int(rng.integers(2**32)))
            for _ in range(bits):
                coder.code(32768, int(rng.integers(2)))
            lengths.append(len(coder.finish()))
        expected = float(stream_bytes(np.float64(32 + bits)))
        assert abs(np.mean(lengths) - expected) < 5 * np.std(lengths) / math.sqrt(400) + 1e-9


def test_a_message_s_estimate_does_not_depend_on_its_neighbours():
    messages = BATCHES["levels"]
    _, ends, positions, values = flat(messages)
    together = estimate_payload_bytes(ends, positions, values, dimension=700, levels=12)
    order = [2, 0, 1]
    _, ends, positions, values = flat([messages[i] for i in order])
    again = estimate_payload_bytes(ends, positions, values, dimension=700, levels=12)
    np.testing.assert_allclose(again, together[order], rtol=1e-12)


@pytest.mark.parametrize(
    ("ends", "positions", "values"),
    [([0, 2], [1], [1]), ([], [], []), ([1, 1], [1], [1]), ([0, 1], [1], [1, 2]), ([0, 2, 1], [1], [1])],
)
def test_ends_that_name_no_messages_are_refused(ends, positions, values):
    with pytest.raises(
        ConfigError, match=r"ends, positions and values do not match; message j lies at ends\[j\]"
    ):
        estimate_payload_bytes(ends, positions, values, dimension=5, levels=3)


def test_the_tables_of_one_stream_share_no_context_with_the_other():
    assert len(frequencies.side_states()) == 2 * TABLE_SIZE
    assert (
        len(gap_code.initial_states()) == gap_code.MAGNITUDES_AT + TABLE_SIZE == gap_code.SIGNS + 2 * TABLE_SIZE
    )
