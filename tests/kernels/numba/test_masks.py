"""Masks: the bits LLVM makes of 64 elements are those NumPy finds, wherever they lie."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from fedpaq.kernels.numba import masks


@njit
def bits_of(array, start):
    """Return the mask of 64 elements, how many bits it has, and its lowest (64 if there is none)."""
    mask = masks.not_zero(array, start)
    lowest = masks.lowest_bit(mask) if mask != masks.NONE else 64
    return mask, masks.count_bits(mask), lowest


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16])
@pytest.mark.parametrize("density", [0.0, 0.02, 0.5, 1.0])
def test_a_mask_has_a_bit_for_each_element_that_is_not_zero(dtype, density):
    rng = np.random.default_rng(int(100 * density))
    array = rng.integers(1, 120, 400).astype(dtype) * (rng.random(400) < density).astype(dtype)
    if np.issubdtype(dtype, np.signedinteger):
        array = -array
    for start in (0, 1, 2, 3, 63, 64, 65, 336):
        places = np.flatnonzero(array[start : start + 64])
        mask, count, lowest = bits_of(array, start)
        assert mask == sum(1 << int(place) for place in places)
        assert count == len(places) and lowest == (places[0] if len(places) else 64)


def test_the_last_bit_is_the_highest():
    array = np.zeros(64, np.int8)
    array[63] = -128
    assert bits_of(array, 0) == (2**63, 1, 63) and masks.LAST == 2**63
