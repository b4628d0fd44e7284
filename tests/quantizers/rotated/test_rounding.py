"""Rounding: the largest and their ties, multiples of a step, sums of cells."""

from __future__ import annotations

import math

import numpy as np

from fedpaq.quantizers.rotated.rounding import product_numpy, round_blocks, sum_cells

RNG = np.random.default_rng(0)


def test_rounding_by_rank_sends_the_largest_and_their_ties():
    values = np.array([[0.5, -3.0, 2.0, -2.0, 0.0, 1.0, 0.0, 0.0]], np.float32)
    for guess in (0.0, 1.5, 100.0):
        rounded = round_blocks(values, np.array([2]), np.array([guess], np.float32))
        assert rounded.levels.tolist() == [0, -1, 1, -1, 0, 0, 0, 0]
        assert rounded.products[0] == 7.0
        assert rounded.counts[0] == 3
    assert round_blocks(values, np.array([0]), np.zeros(1, np.float32)).counts[0] == 0
    nothing_rounds = round_blocks(values, np.array([-1]), np.array([50.0], np.float32))
    assert nothing_rounds.levels.tolist() == [0, -1, 0, 0, 0, 0, 0, 0]


def test_sums_of_cells_are_those_of_numpy():
    update = RNG.standard_normal(1000).astype(np.float32)
    squares, magnitudes = sum_cells(update)
    assert squares.size == 16
    assert math.isclose(squares.sum(), (update.astype(float) ** 2).sum())
    assert math.isclose(magnitudes[-1], np.abs(update[960:].astype(float)).sum())


def test_rounding_to_a_step_is_to_the_nearest_multiple():
    values = np.array([[0.4, -0.6, 2.4, -2.6, 0.0, 1.0, 9e9, -1.4]], np.float32)
    rounded = round_blocks(values, np.array([-1]), np.array([0.5], np.float32))
    assert rounded.levels.tolist() == [0, -1, 2, -3, 0, 1, 32767, -1]
    assert (rounded.counts[0], rounded.largest[0]) == (6, 32767)
    assert math.isclose(rounded.products[0], product_numpy(values[0], rounded.levels), rel_tol=1e-15)


def test_products_are_those_of_numpy():
    values, levels = RNG.standard_normal(1000).astype(np.float32), RNG.integers(-9, 10, 1000).astype(np.int16)
    assert math.isclose(product_numpy(values, levels), values.astype(float) @ levels, rel_tol=1e-9)
