"""Rotation: norms are kept, and its back is its transpose."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedpaq import Key
from fedpaq.quantizers.rotated.rotation import (
    Blocks,
    flip,
    flips_numpy,
    rotate_back_numpy,
    rotate_numpy,
    transform_numpy,
)
from fedpaq.randomness import Purpose

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(("dimension", "count"), [(1, 1), (3, 1), (33, 1), (300, 1), (785, 2), (5000, 1), (20_001, 5)])
def test_rotation_keeps_norms_and_its_back_is_its_transpose(dimension, count):
    blocks, key = Blocks(dimension, count), Key(seed=5, round=3, client=9)
    update = RNG.standard_normal(dimension).astype(np.float32)
    ones = np.ones(count, np.float32)
    rotated = rotate_numpy(update, blocks, ones, key).astype(np.float64)
    assert math.isclose((rotated**2).sum(), (update.astype(float) ** 2).sum() * blocks.growth**2, rel_tol=1e-5)
    levels = RNG.integers(-3, 4, blocks.padded).astype(np.int16)
    back = rotate_back_numpy(levels, blocks, np.ones(count), key).astype(np.float64)
    there, here = rotated.reshape(-1) @ levels, back @ update
    assert abs(there - here) <= 1e-4 * blocks.growth * np.linalg.norm(levels)


def test_the_transform_is_the_hadamard_matrix():
    index = np.arange(16)
    ones = np.bitwise_count(index[:, None] & index)  # entry (i, j) is (-1)^(bits of i & j)
    assert np.array_equal(transform_numpy(np.eye(16, dtype=np.float32)), np.where(ones % 2, -1.0, 1.0))


def test_signs_are_fair_and_differ_between_turns_and_clients():
    streams = [
        flips_numpy(purpose, Key(seed=1, client=client), 20_000) >> 31
        for purpose in (Purpose.ROTATION, Purpose.ROTATION_AGAIN)
        for client in (0, 1)
    ]
    for i, bits in enumerate(streams):
        assert abs(bits.mean() - 0.5) < 5 * 0.5 / math.sqrt(20_000)
        for other in streams[:i]:
            assert abs((bits == other).mean() - 0.5) < 5 * 0.5 / math.sqrt(20_000)
    assert flip(np.ones((1, 2), np.float32), np.array([0, 2**31], np.uint32)).tolist() == [[1.0, -1.0]]


@pytest.mark.parametrize(("dimension", "count"), [(1, 1), (785, 1), (785, 2), (92_027, 12), (10**9, 1)])
def test_blocks_cover_the_update(dimension, count):
    blocks = Blocks(dimension, count)
    assert blocks.fits and blocks.length * count >= dimension and blocks.size >= blocks.length
    assert blocks.size & (blocks.size - 1) == 0


def test_a_count_that_leaves_blocks_empty_does_not_fit():
    assert not Blocks(100, 3).fits  # two cells of 64 hold it
    assert not Blocks(1, 2).fits
