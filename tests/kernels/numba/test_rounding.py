"""The compiled rounding is that of NumPy, to the bit: levels, products, counts, sums of cells."""

from __future__ import annotations

import numpy as np
import pytest

from fedpaq.kernels import numba as compiled
from fedpaq.kernels.numba import rounding
from fedpaq.quantizers.rotated.rounding import product_numpy, round_numpy, sum_cells

RNG = np.random.default_rng(0)


def blocks_of(size):
    """Blocks that rounding may find hard: Gaussian, equal magnitudes, many ties, zeros and one value."""
    ties = RNG.integers(-3, 4, size).astype(np.float32)
    one = np.zeros(size, np.float32)
    one[size // 2] = -2.0
    return np.stack([RNG.standard_normal(size), np.where(RNG.random(size) < 0.5, -1, 1), ties, one]).astype(np.float32)


@pytest.mark.usefixtures("spread_over_threads")
@pytest.mark.parametrize("size", [1, 2, 64, 1024, 8192])
@pytest.mark.parametrize("wanted", [-1, 0, 1, 7, 10**9])
@pytest.mark.parametrize("least", [0.01, 0.4, 3.0])
def test_levels_are_those_of_numpy(size, wanted, least):
    rotated = blocks_of(size)
    wanted = np.full(4, min(wanted, size))
    guesses = np.full(4, least, np.float32)
    levels, products = np.empty(rotated.size, np.int16), np.empty(4)
    counts, largest = np.empty(4, np.int64), np.empty(4, np.int64)
    rounding.round_blocks(rotated, wanted, guesses, levels, products, counts, largest)
    for block, (values, row) in enumerate(zip(rotated, levels.reshape(4, size), strict=True)):
        expected = round_numpy(values, int(wanted[block]), guesses[block])
        assert np.array_equal(row, expected)
        assert products[block] == product_numpy(values, expected)
        assert counts[block] == np.count_nonzero(expected)
        if counts[block]:
            assert largest[block] == np.abs(expected).max()


@pytest.mark.parametrize("size", [1, 63, 64, 65, 1000])
def test_sums_of_cells_are_those_of_numpy(size, monkeypatch):
    update = RNG.standard_normal(size).astype(np.float32)
    fast = sum_cells(update)
    monkeypatch.setattr(compiled, "load", lambda name: None)
    assert all(np.array_equal(one, other) for one, other in zip(fast, sum_cells(update), strict=True))
