"""Cells: sums in halves, equal to the twin to the bit, also where the order of additions shows."""

from __future__ import annotations

import numpy as np
import pytest

from fedpaq.kernels import numba as compiled
from fedpaq.quantizers.rotated.rounding import sum_cells

RNG = np.random.default_rng(0)
UPDATES = {
    "one coordinate": np.array([-3.0], np.float32),
    "one cell": RNG.standard_normal(64).astype(np.float32),
    "a cell and one": RNG.standard_normal(65).astype(np.float32),
    "scales far apart": (RNG.standard_normal(1000) * 10.0 ** RNG.integers(-15, 15, 1000)).astype(np.float32),
    "not finite": np.array([1.0, np.nan, *[2.0] * 70, -np.inf], np.float32),
    "unaligned": RNG.standard_normal(400).astype(np.float32)[3:],
}


@pytest.mark.parametrize("name", UPDATES)
def test_sums_are_the_twins_to_the_bit(name, monkeypatch):
    update = UPDATES[name]
    squares, magnitudes = sum_cells(update)
    monkeypatch.setattr(compiled, "load", lambda name: None)
    slow_squares, slow_magnitudes = sum_cells(update)
    assert np.array_equal(squares, slow_squares, equal_nan=True)
    assert np.array_equal(magnitudes, slow_magnitudes, equal_nan=True)


def test_the_order_of_halves_shows_in_the_last_bits():
    update = UPDATES["scales far apart"]
    in_order = [float(np.cumsum(part.astype(np.float64) ** 2)[-1]) for part in np.split(update[:960], 15)]
    assert sum_cells(update)[0][:15].tolist() != in_order  # so equality above is not for free
