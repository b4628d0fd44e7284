"""Gap code in machine code: huge dimensions, whole streams against the twin."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codec_cases import gaussian_message
from fedpaq.codec import gap_code
from fedpaq.kernels import numba as compiled


@st.composite
def nonzeros(draw):
    """Some non-zeros anywhere below 2^40, most of them near others."""
    dimension = draw(st.sampled_from([1, 2, 70, 2**16, 2**31 + 5, 2**40 - 1]))
    levels = draw(st.sampled_from([1, 2, 127, 32767]))
    places = st.integers(0, dimension - 1) | st.integers(0, min(dimension - 1, 100))
    positions = sorted(draw(st.sets(places, max_size=40)))
    sizes = st.integers(1, levels) | st.integers(1, min(levels, 3))
    values = [draw(sizes) * draw(st.sampled_from([-1, 1])) for _ in positions]
    width = draw(st.sampled_from([1, 50, dimension]))
    return np.array(positions, np.int64), np.array(values, np.int16), dimension, levels, width


@given(nonzeros())
@settings(max_examples=50, deadline=None)
def test_gap_streams_of_any_dimension_are_the_twin_s_and_come_back(case):
    positions, values, dimension, levels, width = case
    ends = np.array([0, len(positions)])
    (stream,) = gap_code.encode_nonzeros(ends, positions, values, dimension, levels, width)
    assert stream == gap_code.encode_numpy(positions, values, dimension, levels, width)
    read = gap_code.decode_nonzeros(stream, dimension, levels, width, len(positions))
    assert np.array_equal(read[0], positions) and np.array_equal(read[1], values)
    assert read[0].dtype == np.int64 and read[1].dtype == np.int16


@pytest.mark.usefixtures("spread_over_threads")
@pytest.mark.parametrize("room", [0, 1, 8])
def test_streams_written_side_by_side_do_not_touch(room, monkeypatch):
    """Each stream has a room of its own in one array; a stream too long for it is written again."""
    monkeypatch.setattr(gap_code, "BYTES_PER_NONZERO", room)
    messages = [gaussian_message(150, 30_000, seed=seed) for seed in range(5)]
    messages[2] = replace(messages[2], signed_levels=np.zeros(150, np.int16))
    at = [np.flatnonzero(message.signed_levels) for message in messages]
    values = [message.signed_levels[part].astype(np.int16) for message, part in zip(messages, at, strict=True)]
    ends = np.cumsum([0, *map(len, at)])
    streams = gap_code.encode_nonzeros(ends, np.concatenate(at), np.concatenate(values), 150, 30_000, 150)
    expected = [gap_code.encode_numpy(*pair, 150, 30_000, 150) for pair in zip(at, values, strict=True)]
    assert streams == expected and streams[2] == b""


@given(st.lists(st.integers(0, 2**40 - 1), min_size=1, max_size=40, unique=True), st.integers(0, 40))
@settings(max_examples=40, deadline=None)
def test_the_local_mean_of_gaps_is_the_twin_s(positions, t):
    positions, t = sorted(positions), min(t, len(positions) - 1)
    kernels = compiled.load("gap_code")
    left = len(positions) - t
    previous = positions[t - 1] if t else -1
    fast = kernels.mean_gap.py_func(positions, t, previous, 2**40 - 1, left)
    assert fast == gap_code.mean_gap([-1, *positions[:t]], 2**40 - 1, left) >= 0
