"""The papers' counts: monotone, by bucket, by hand; entropy."""

from __future__ import annotations

import numpy as np
import pytest

from fedpaq.codec import message_bits, order0_entropy


def test_numpy_integers_are_counted_as_python_s():
    for dimension in (np.int32(10**9), np.int64(785), 785):
        for levels in (np.int8(100), np.int16(300), np.uint16(32767)):
            for accounting in ("fixed-width", "elias"):
                expected = message_bits(int(dimension), int(levels), accounting, bucket_size=100)
                assert message_bits(dimension, levels, accounting, bucket_size=np.int8(100)) == expected
        assert message_bits(dimension, None) == 32 * int(dimension)


@pytest.mark.parametrize("accounting", ["fixed-width", "elias"])
def test_counts_grow_with_the_dimension_and_with_levels(accounting):
    bits = [[message_bits(p, s, accounting) for p in (1, 9, 100, 5000)] for s in (1, 2, 5, 60, 32767)]
    assert np.all(np.diff(bits, axis=1) > 0) and np.all(np.diff(bits, axis=0) >= 0)


@pytest.mark.parametrize("accounting", ["fixed-width", "elias"])
def test_buckets_are_counted_as_messages_of_their_own(accounting):
    parts = [message_bits(size, 4, accounting) for size in (300, 300, 300, 100)]
    assert message_bits(1000, 4, accounting, bucket_size=300) == sum(parts)
    assert message_bits(1000, 4, accounting, bucket_size=5000) == message_bits(1000, 4, accounting)


def test_the_elias_count_worked_by_hand():
    """p = 16, s = 1: 5 non-zeros, spread 2 * 17 / 5 = 6.8; (3 + 1.5 * 2.7655) * 5 = 35.74, and 32."""
    assert message_bits(16, 1, "elias") == min(36 + 32, 16 * 2 + 32) == 64
    # p = 10,000: 101 non-zeros, spread 198.04; (3 + 1.5 * 7.6297) * 101 = 1458.9
    assert message_bits(10_000, 1, "elias") == 1459 + 32


def test_entropy_does_not_ask_which_level_or_where():
    rng = np.random.default_rng(2)
    levels = rng.choice(np.array([-3, 0, 0, 0, 5], np.int8), 400)
    bits = order0_entropy(levels)
    assert order0_entropy(rng.permutation(levels)) == pytest.approx(bits, rel=1e-12)
    assert order0_entropy(-levels) == pytest.approx(bits, rel=1e-12)
    assert order0_entropy(np.concatenate([levels, levels])) == pytest.approx(2 * bits, rel=1e-12)


def test_entropy_worked_by_hand():
    assert order0_entropy(np.zeros(0, np.int8)) == 0.0
    assert order0_entropy(np.full(9, 7, np.int16)) == 0.0
    assert order0_entropy(np.array([-32767, 32767], np.int16)) == 2.0
    assert order0_entropy(np.array([-128, 127, 127, 127], np.int8)) == pytest.approx(2 + 3 * np.log2(4 / 3))
