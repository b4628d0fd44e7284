"""The range coder: decisions come back, cost their entropy, and have one encoding only."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpaq.codec.range_coder import RangeDecoder, RangeEncoder
from fedpaq.errors import WireFormatError

decisions = st.lists(st.tuples(st.integers(16, 65520), st.integers(0, 1)), max_size=300)


def encode(sequence):
    encoder = RangeEncoder()
    for probability, bit in sequence:
        encoder.code(probability, bit)
    return encoder.finish()


@given(decisions)
@settings(max_examples=200, deadline=None)
def test_decisions_come_back_and_the_end_is_recognised(sequence):
    decoder = RangeDecoder(encode(sequence))
    assert [decoder.code(probability) for probability, _ in sequence] == [bit for _, bit in sequence]
    decoder.finish()


@given(decisions)
@settings(max_examples=200, deadline=None)
def test_the_length_is_the_information_plus_at_most_a_byte(sequence):
    bits = sum(-math.log2((p if bit else 65536 - p) / 65536) for p, bit in sequence)
    assert len(encode(sequence)) <= bits / 8 + 1.01


@given(decisions, st.binary(min_size=1, max_size=3))
@settings(max_examples=200, deadline=None)
def test_other_bytes_are_refused_or_mean_other_decisions(sequence, garbage):
    decoder = RangeDecoder(encode(sequence) + garbage)
    bits = [decoder.code(probability) for probability, _ in sequence]
    if bits == [bit for _, bit in sequence]:
        with pytest.raises(WireFormatError):
            decoder.finish()


@given(st.lists(st.tuples(st.integers(0, 45), st.integers(0, 2**45 - 1)), max_size=50))
@settings(max_examples=100, deadline=None)
def test_raw_bits_come_back(fields):
    encoder = RangeEncoder()
    for width, value in fields:
        encoder.raw(width, value % (1 << width))
    decoder = RangeDecoder(encoder.finish())
    assert [decoder.raw(width) for width, _ in fields] == [value % (1 << width) for width, value in fields]
    decoder.finish()


def test_a_carry_runs_through_bytes_already_sent():
    likely_zero = [(16, 0)] * 3000 + [(32768, 1)] * 70 + [(65520, 0)]
    assert encode(likely_zero)
    decoder = RangeDecoder(encode(likely_zero))
    assert [decoder.code(p) for p, _ in likely_zero] == [bit for _, bit in likely_zero]


def test_nothing_takes_no_bytes():
    assert encode([]) == b""
