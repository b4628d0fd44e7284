"""Sketch: messages of any length, each with <x_hat, x> = ||x||^2 but for the rounding of its scales."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedpaq.quantizers.rotated.allocation import allocate
from fedpaq.quantizers.rotated.rounding import sum_cells
from fedpaq.quantizers.rotated.sketch import Sketch, mantissa_for
from rotated_cases import KEY, bytes_of, kinds, rotated_message


def sketch_of(update, bits):
    cells = sum_cells(update)[0]
    return Sketch.of(update, allocate(cells, update.size, bits), cells, KEY)


@pytest.mark.parametrize("bits", [0.05, 0.4, 2.0])
def test_the_part_along_the_update_is_the_update(bits):
    for name, update in kinds(5000).items():
        message = rotated_message(update, bits)
        along = message.dequantize().astype(np.float64) @ update / (update.astype(np.float64) ** 2).sum()
        assert abs(along - 1) < 2.0**-message.mantissa_bits, name  # scales have so few bits


def test_longer_messages_are_made_of_one_sketch():
    update = kinds(5000)["uneven"]
    sketch = sketch_of(update, 5000)
    sizes = [bytes_of(sketch.message(bits)) for bits in (200, 1000, 5000)]
    assert sizes == sorted(sizes) and bytes_of(sketch.shortest()) < sizes[0]
    for bits, size in zip((1000, 5000), sizes[1:], strict=True):
        assert math.isclose(8 * size, bits, rel_tol=0.2)


def test_the_shortest_message_has_one_level_per_block_with_energy():
    update = kinds(8192)["gaussian"]
    update[2048:4096] = 0
    sketch = sketch_of(update, 8192)
    message = sketch.shortest()
    assert message.nonzeros == np.count_nonzero(sketch.energies)
    assert message.levels == 1


def test_scales_have_more_bits_where_the_error_is_small():
    assert mantissa_for(30.0, 100.0) <= mantissa_for(1.0, 1000.0) < mantissa_for(0.001, 8000.0)
    assert mantissa_for(1e9, 0.0) == 2
