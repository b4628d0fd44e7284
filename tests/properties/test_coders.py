"""The coders below the codes: the range coder by exact fractions, integers by what they may cost."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpaq.codec import frequencies, gap_code
from fedpaq.codec.adaptive_integers import (
    COUNT_BITS,
    LEAST_PROBABILITY,
    MAX_COUNT,
    ONE,
    RECIPROCALS,
    ROW_SIZE,
    ROWS,
    code_bit,
    code_integer,
    locate,
    pack_state,
    power,
    prior_table,
    row_mean,
)
from fedpaq.codec.range_coder import MASK, TOP, RangeDecoder, RangeEncoder, shortest_offset
from fedpaq.errors import WireFormatError
from fedpaq.kernels import numba as compiled

steps = st.lists(
    st.tuples(st.just("bit"), st.integers(16, 65520), st.integers(0, 1))
    | st.tuples(st.just("raw"), st.integers(1, 40), st.integers(0, 2**40 - 1)),
    max_size=60,
)


def told(coder, sequence, tell=True):
    """Pass a sequence of decisions and raw bits; told the values, or asked for them."""
    values = []
    for kind, number, value in sequence:
        value = value if kind == "bit" else value % (1 << number)
        passed = coder.code if kind == "bit" else coder.raw
        values.append(passed(number, value if tell else None))
    return values


def encoded(sequence):
    coder = RangeEncoder()
    told(coder, sequence)
    return coder.finish()


@given(steps)
@settings(max_examples=50, deadline=None)
def test_decisions_and_raw_bits_mix_and_come_back(sequence):
    expected = [value if kind == "bit" else value % (1 << number) for kind, number, value in sequence]
    decoder = RangeDecoder(encoded(sequence))
    assert told(decoder, sequence, tell=False) == expected
    decoder.finish()


@given(st.lists(st.tuples(st.just("bit"), st.integers(16, 65520), st.integers(0, 1)), max_size=40))
@settings(max_examples=50, deadline=None)
def test_the_bytes_name_a_number_in_the_interval_of_the_decisions(sequence):
    """The interval in exact fractions; the coder's own, of truncated ranges, lies inside it or nearly."""
    low, size, slack = Fraction(0), Fraction(1), Fraction(0)
    for _, probability, bit in sequence:
        share = Fraction(probability, 65536)
        slack += size / 2**23  # a range of at least 2^40 loses less than 2^16 to truncation, 2^-24 of it
        low, size = (low, size * share) if bit else (low + size * share, size * (1 - share))
    stream = encoded(sequence)
    number = Fraction(int.from_bytes(stream, "big"), 256 ** len(stream))
    assert low - slack <= number < low + size + slack


@given(st.lists(st.integers(0, 1), max_size=100))
@settings(max_examples=30, deadline=None)
def test_even_decisions_are_the_bits_themselves(bits):
    """At one half a one takes the lower part: the stream is the complement of the bits, as a number."""
    stream = encoded([("bit", 32768, bit) for bit in bits])
    number = int("".join(str(1 - bit) for bit in bits) or "0", 2)
    assert stream == (number << (-len(bits) % 8)).to_bytes((len(bits) + 7) // 8, "big").rstrip(b"\0")


@given(steps.filter(len), st.integers(0, 400), st.integers(0, 7))
@settings(max_examples=50, deadline=None)
def test_a_flipped_bit_changes_the_values_or_is_refused(sequence, place, bit):
    stream = bytearray(encoded(sequence) or b"\0")
    stream[place % len(stream)] ^= 1 << bit
    decoder = RangeDecoder(bytes(stream))
    try:
        values = told(decoder, sequence, tell=False)
        decoder.finish()
    except WireFormatError:
        return
    assert values != told(RangeEncoder(), sequence)


@given(st.integers(0, MASK), st.integers(1 << 40, TOP))
@settings(max_examples=50, deadline=None)
def test_the_shortest_number_of_an_interval_is_in_it_and_shortest(low, size):
    offset, count = shortest_offset(low, size)
    number = low + offset
    zeros = 8 * (6 - count)
    assert 0 <= offset < size and number % (1 << zeros) == 0 and count <= 1 + (size < 1 << 41)
    if count:  # no number with a byte less
        coarser = 1 << (zeros + 8)
        assert -(-low // coarser) * coarser >= low + size


def test_a_decoder_without_bytes_reads_zeros_and_refuses_a_zero_byte():
    decoder = RangeDecoder(b"")
    assert [decoder.code(32768) for _ in range(5)] == [1] * 5
    decoder.finish()
    for stream in (b"\0", b"\x80\0"):
        decoder = RangeDecoder(stream)
        decoder.code(32768)
        with pytest.raises(WireFormatError, match="does not end where its last symbol does; the payload is corrupt"):
            decoder.finish()


def test_raw_bits_beyond_the_interval_are_refused():
    decoder = RangeDecoder(b"\xff" * 6)
    for _ in range(3):
        decoder.code(21845)  # until the range is odd
    with pytest.raises(WireFormatError, match="leaves the coder's interval; the payload is corrupt"):
        decoder.raw(16)


# Adaptive integers.


class Steps:
    """A coder that records what passes through it."""

    def __init__(self):
        self.decisions, self.raw_bits = [], 0

    def code(self, probability, bit):
        self.decisions.append((probability, bit))
        return bit

    def raw(self, count, value):
        self.raw_bits += count
        return value


@given(st.integers(0, 2**12), st.integers(0, 2**40 - 1))
@settings(max_examples=50, deadline=None)
def test_an_integer_costs_a_logarithm_of_how_far_it_lies_beyond_the_mean(mean, value):
    coder = Steps()
    code_integer(coder, prior_table(8).tolist(), 0, mean, value)
    order, _ = locate(mean)
    flags = (value >> order).bit_length() + 1  # steps double: at most one flag an octave
    assert len(coder.decisions) <= flags + 3
    assert coder.raw_bits <= max(value.bit_length(), order)
    assert all(LEAST_PROBABILITY <= p <= 65536 - LEAST_PROBABILITY for p, _ in coder.decisions)


def test_an_integer_worked_by_hand():
    """Mean 1 (8 eighths): steps of 2, 4, 8, ...; 9 = 2 + 4 + 3 lies in the third: flags 1, 1, 0, offset 011."""
    coder = Steps()
    assert locate(8) == (1, 8)
    assert code_integer(coder, prior_table(8).tolist(), 0, 8, 9) == 9
    assert [bit for _, bit in coder.decisions] == [1, 1, 0, 0, 1, 1] and coder.raw_bits == 0


def test_geometric_integers_cost_little_more_than_their_entropy():
    """5,000 geometric integers of mean 6: 1 % above the entropy, learning included."""
    rng = np.random.default_rng(6)
    q = 1 / 7
    values = rng.geometric(q, 5000) - 1
    encoder, states = RangeEncoder(), prior_table(8).tolist()
    for value in values.tolist():
        code_integer(encoder, states, 0, 48, value)
    entropy = (-q * math.log2(q) - (1 - q) * math.log2(1 - q)) / q * 5000
    # The sample's own information has a standard deviation of |log2(1 - q)| sqrt(1 - q) / q an integer.
    slack = 5 * abs(math.log2(1 - q)) * math.sqrt(1 - q) / q * math.sqrt(5000)
    assert 8 * len(encoder.finish()) < 1.01 * entropy + slack


@given(st.lists(st.integers(0, 1), min_size=1, max_size=60))
@settings(max_examples=40, deadline=None)
def test_a_context_counts_ones_and_decisions(bits):
    states = [pack_state(ONE * 4, 8)]
    for bit in bits:
        code_bit(Steps(), states, 0, bit)
    assert states[0] >> COUNT_BITS == ONE * (4 + sum(bits)) and states[0] & 2047 == 8 + len(bits)


def test_a_full_context_is_halved_and_keeps_its_probability():
    states = [pack_state(ONE * 300, MAX_COUNT - 1)]
    code_bit(Steps(), states, 0, 1)
    assert states == [pack_state(ONE * 301 // 2, MAX_COUNT // 2)]
    kernels = compiled.load("adaptive_integers")
    assert kernels.learn.py_func(pack_state(ONE * 300, MAX_COUNT - 1), 1) == states[0]


@given(st.integers(1, MAX_COUNT - 1), st.data())
@settings(max_examples=50, deadline=None)
def test_probabilities_are_shares_of_ones_kept_from_the_edges(count, data):
    ones = data.draw(st.integers(0, ONE * count))
    coder = Steps()
    code_bit(coder, [pack_state(ones, count)], 0, 0)
    exact = 65536 * ones / (ONE * count)
    ((probability, _),) = coder.decisions
    assert abs(probability - min(max(exact, 16), 65520)) <= 2
    kernels = compiled.load("adaptive_integers")
    assert kernels.probability_of.py_func(pack_state(ones, count), RECIPROCALS) == probability


def test_means_share_rows_by_quarter_octaves():
    for mean in range(4, 16 * 8):
        order, row = locate(mean)
        numerator, denominator = row_mean(row)
        # The row's middle is within an eighth of the mean: rows are a quarter octave wide, or an eighth.
        assert abs(mean / 8 - numerator / denominator) <= max(numerator / denominator / 7, 1 / 16)
        assert 2**order <= max(mean / 4, 1) < 2 ** (order + 1)
    assert [locate(mean)[1] for mean in range(4)] == [0, 1, 2, 3]
    assert max(locate(2**k - 1)[1] for k in range(1, 45)) == ROWS - 1


def test_powers_by_squaring_are_powers():
    for share in (0.1, 0.5, 0.93):
        for exponent in range(5):
            assert power(int(share * 2**32), exponent) / 2**32 == pytest.approx(share ** (2**exponent), abs=1e-8)


def test_rare_integers_beyond_2_40_are_refused_by_both_decoders(monkeypatch):
    """A stream of ones only never ends its first integer."""
    decoder = RangeDecoder(b"")
    with pytest.raises(WireFormatError, match=r"an integer beyond 2\^40; the payload is corrupt"):
        code_integer(decoder, prior_table(8).tolist(), 0, 0, None)
    for load in (compiled.load, lambda name: None):
        monkeypatch.setattr(compiled, "load", load)
        with pytest.raises(WireFormatError, match="the payload is corrupt"):
            gap_code.decode_nonzeros(b"", 2**40 - 1, 1, 2**40 - 1, 1)


@pytest.mark.parametrize(
    ("levels", "width", "guess"), [(1, 1, 1), (1, 2, 1), (1, 4, 0), (100, 100, 10), (32767, 1, 32767), (5, 10**12, 0)]
)
def test_the_first_guess_of_a_magnitude_is_s_over_sqrt_p(levels, width, guess):
    assert gap_code.expected_excess(levels, width) == guess


# Frequencies.


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=100), st.integers(1, 50))
@settings(max_examples=40, deadline=None)
def test_frequencies_are_shares_to_a_part_in_4096_but_for_the_commonest(counts, factor):
    counts = np.array(counts, np.int64)
    result = frequencies.normalise(counts)
    if counts.any():
        others = np.arange(len(counts)) != result.argmax()
        assert np.all(np.abs(result - 4096 * counts / counts.sum())[others] <= 1)
        assert np.all(np.diff(result[others][np.argsort(counts[others])]) >= 0)
    assert np.array_equal(frequencies.normalise(result), result)


def test_tables_are_normalised_each_on_its_own():
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 100, (4, 3, 20)) * (rng.random((4, 3, 1)) < 0.7)
    each = [[frequencies.normalise(table) for table in group] for group in counts]
    assert np.array_equal(frequencies.normalise(counts), each)


def test_zigzag_counts_outwards_from_zero():
    assert [frequencies.unzigzag(code) for code in range(7)] == [0, -1, 1, -2, 2, -3, 3]
    assert sorted(frequencies.zigzag(step) for step in range(-23, 24)) == list(range(47))
    assert ROW_SIZE == 80
