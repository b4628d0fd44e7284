"""The compiled rotation is that of NumPy, to the bit, forth and back, on one thread and on several."""

from __future__ import annotations

import numpy as np
import pytest

from fedpaq.kernels.numba import rotation
from fedpaq.quantizers.rotated.rotation import Blocks, rotate_back_numpy, rotate_numpy, transform_numpy
from fedpaq.randomness import Key

KEY = Key(seed=2**40 + 1, round=7, client=3)
SHAPES = [(1, 1), (3, 1), (200, 1), (256, 1), (785, 2), (5000, 1), (20_001, 5), (70_000, 1), (100_000, 3)]


@pytest.mark.parametrize("size", [2**power for power in range(18)])
def test_the_transform_is_that_of_numpy(size):
    values = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    expected = transform_numpy(values[None])[0]
    for start in range(0, size, rotation.TILE):
        rotation.transform_tile(values[start : start + rotation.TILE])
    rotation.transform_wide(values, rotation.TILE)
    assert np.array_equal(values, expected)


@pytest.mark.usefixtures("spread_over_threads")
@pytest.mark.parametrize(("dimension", "count"), SHAPES)
def test_rotations_are_those_of_numpy(dimension, count):
    blocks, rng = Blocks(dimension, count), np.random.default_rng(dimension)
    update = rng.standard_normal(dimension).astype(np.float32)
    factors = np.ldexp(np.float32(1), rng.integers(-3, 4, count)).astype(np.float32)
    expected = rotate_numpy(update, blocks, factors, KEY)
    found = np.full((count, blocks.size), np.nan, np.float32)
    rotation.rotate(update, blocks.length, blocks.turns, factors, KEY.seed, KEY.round, KEY.client, found)
    assert np.array_equal(found, expected)


@pytest.mark.usefixtures("spread_over_threads")
@pytest.mark.parametrize(("dimension", "count"), SHAPES)
def test_rotations_back_are_those_of_numpy(dimension, count):
    blocks, rng = Blocks(dimension, count), np.random.default_rng(dimension)
    levels = rng.integers(-4, 5, blocks.padded).astype(np.int16)
    scales = rng.random(count)
    expected = rotate_back_numpy(levels, blocks, scales, KEY)
    shape = blocks.length, blocks.size, blocks.turns
    found = np.full(dimension, np.nan, np.float32)
    rotation.rotate_back(levels, *shape, scales, KEY.seed, KEY.round, KEY.client, found)
    assert np.array_equal(found, expected)
