"""RotatedMessage: scales of few bits, and what a message says of itself."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from fedpaq import ConfigError, Key
from fedpaq.quantizers.rotated.message import largest_estimate, round_scales, scale_index, scale_of
from rotated_cases import arithmetic_rotated, rotated_message, uneven_update


def test_scales_are_rounded_to_either_neighbour_and_keep_their_mean():
    exact = np.full(20_000, 1.3)
    rounded = round_scales(exact, 2, Key(seed=0))
    assert set(rounded.tolist()) == {1.25, 1.5}
    assert abs(rounded.mean() - 1.3) < 5 * 0.1 / math.sqrt(20_000)


def test_scales_travel_as_integers():
    scales = np.array([0.875, 1.0, 1.5, 2.0**-300])
    index = scale_index(scales, 3)
    assert np.array_equal(scale_of(index, 3), scales)
    assert index[2] - index[1] == 4  # eighths of an octave


def test_no_estimate_exceeds_its_bound():
    for message in (rotated_message(uneven_update(3000), 0.5), arithmetic_rotated(900, 1, 5, 7)):
        assert np.abs(message.dequantize()).max() <= largest_estimate(message)


def test_messages_add_themselves():
    message, total = arithmetic_rotated(900, 2, 5, 7), np.ones(900)
    message.add_to(total, 0.5)
    assert np.array_equal(total, 1 + 0.5 * message.dequantize().astype(np.float64))
    assert message == arithmetic_rotated(900, 2, 5, 7) != arithmetic_rotated(900, 1, 5, 7)


@pytest.mark.parametrize("part", ["signed_levels", "scales"])
def test_levels_and_scales_that_do_not_fit_the_blocks_are_refused(part):
    """A kernel would read beyond them."""
    message = arithmetic_rotated(1000, 3, 5, 7)
    with pytest.raises(ConfigError, match=r"do not fit Blocks\(dimension=1000, count=3\); pass \(1536,\) and \(3,\)"):
        dataclasses.replace(message, **{part: getattr(message, part)[:-1]})
