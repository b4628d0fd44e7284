"""Non-zeros in machine code: what NumPy finds, on one thread and on several."""

from __future__ import annotations

import numpy as np
import pytest

from fedpaq.kernels import numba as compiled


def rows_of(dtype, density, width=200, count=7):
    rng = np.random.default_rng(int(100 * density))
    values = rng.integers(-100, 101, (count, width)) * (rng.random((count, width)) < density)
    rows = values.astype(dtype)
    rows.flags.writeable = False
    return rows


@pytest.mark.usefixtures("spread_over_threads")
@pytest.mark.parametrize("dtype", [np.int8, np.int16])
@pytest.mark.parametrize("density", [0.0, 0.02, 0.5, 1.0])
@pytest.mark.parametrize("width", [1, 63, 64, 65, 200])
def test_positions_and_values_are_numpy_s(dtype, density, width):
    kernels, rows = compiled.load("nonzeros"), rows_of(dtype, density, width)
    counts = np.empty(len(rows), np.int64)
    kernels.count(rows, counts)
    assert counts.tolist() == np.count_nonzero(rows, axis=1).tolist()
    ends = np.concatenate([[0], np.cumsum(counts)])
    positions, values = np.full(ends[-1], -1), np.zeros(ends[-1], np.int16)
    kernels.collect(rows, ends, positions, values)
    assert np.array_equal(positions, np.nonzero(rows)[1]) and np.array_equal(values, rows[rows != 0])


@pytest.mark.parametrize("width", [10, 200])
def test_adding_is_one_message_after_another(width):
    rows, run_of = rows_of(np.int8, 0.1), np.array([0, 1, 1, 0, 2, 2, 2])
    units = np.random.default_rng(1).standard_normal((7, 200 // width))
    ends = np.concatenate([[0], np.cumsum(np.count_nonzero(rows, axis=1))])
    total, expected = np.full((3, 200), 0.5), np.full((3, 200), 0.5)
    positions, values = np.nonzero(rows)[1].copy(), rows[rows != 0].astype(np.int16)
    compiled.load("nonzeros").add(ends, positions, values, units, width, run_of, total)
    for row, unit, run in zip(rows, units, run_of, strict=True):
        expected[run] += row * np.repeat(unit, width)
    assert np.array_equal(total, expected)
