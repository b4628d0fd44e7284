"""The integer model: priors are probabilities, contexts are in range, and machine code agrees."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpaq.codec.adaptive_integers import (
    COUNT_BITS,
    ONE,
    ROWS,
    TABLE_SIZE,
    code_integer,
    locate,
    prior_table,
    row_mean,
)
from fedpaq.codec.range_coder import RangeDecoder, RangeEncoder
from fedpaq.kernels.numba import load


def test_priors_are_proper_and_follow_the_geometric_law():
    table = prior_table(8).reshape(ROWS, -1, 8)
    ones, counts = table >> COUNT_BITS, table & 2047
    assert (counts == 8).all()
    assert (ones > 0).all()
    assert (ones < 8 * ONE).all()
    for row in range(4, 8):  # order 0: the first step holds n = 0 alone
        mean = np.divide(*row_mean(row))
        assert abs(ones[row, 0, 0] / (8 * ONE) - mean / (1 + mean)) < 1 / 256


def test_larger_means_have_larger_orders():
    orders = [locate(mean) for mean in range(4096)]
    assert orders == sorted(orders, key=lambda pair: pair[0])
    assert all(0 <= row < ROWS for _, row in orders)


def test_the_compiled_contexts_are_the_same():
    kernels = load("adaptive_integers")
    for mean in [*range(5000), 2**30 + 7, 2**44 - 1]:
        assert tuple(kernels.locate(mean)) == locate(mean)


@given(st.lists(st.tuples(st.integers(0, 2**30), st.integers(0, 2**40)), max_size=60))
@settings(max_examples=100, deadline=None)
def test_any_integer_survives_under_any_mean(pairs):
    encoder = RangeEncoder()
    states = prior_table(8).tolist()
    for mean, value in pairs:
        code_integer(encoder, states, 0, mean, value)
    decoder = RangeDecoder(encoder.finish())
    again = prior_table(8).tolist()
    assert [code_integer(decoder, again, 0, mean, None) for mean, _ in pairs] == [value for _, value in pairs]
    decoder.finish()
    assert states == again
    assert len(states) == TABLE_SIZE
