"""Butterflies: a run of 256 and runs apart are transformed as NumPy does it, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from fedpaq.kernels.numba import butterflies
from fedpaq.quantizers.rotated.rotation import transform_numpy

RNG = np.random.default_rng(0)


@njit
def run_of(values, start):
    """Transform 256 numbers in place."""
    butterflies.mix_run(values, start, 16)


def test_a_run_is_transformed_whole_and_nothing_else():
    values = RNG.standard_normal(512).astype(np.float32)
    expected = values.copy()
    expected[100:356] = transform_numpy(expected[None, 100:356])[0]
    run_of(values, 100)
    assert np.array_equal(values, expected)


@pytest.mark.parametrize("count", [2, 4, 8, 16])
def test_runs_that_lie_apart_are_mixed_lane_by_lane(count):
    mix = {2: butterflies.mix_2, 4: butterflies.mix_4, 8: butterflies.mix_8, 16: butterflies.mix_16}[count]

    @njit
    def mixed(values, start, stride):
        mix(values, start, stride)

    values, stride = RNG.standard_normal(16 * 25).astype(np.float32), 24
    expected = values.copy()
    places = 5 + stride * np.arange(count)[:, None] + np.arange(16)  # (count, lanes)
    expected[places] = transform_numpy(np.ascontiguousarray(values[places].T)).T
    mixed(values, 5, stride)
    assert np.array_equal(values, expected)
