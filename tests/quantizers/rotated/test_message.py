"""RotatedMessage: scales of few bits, and what a message says of itself."""

from __future__ import annotations

import math

import numpy as np

from fedpaq import Key
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
