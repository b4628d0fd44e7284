"""Frequencies: tables that sum to 4096, and the side stream that carries them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpaq.codec import block_code, frequencies, tokens
from fedpaq.codec.range_coder import RangeEncoder
from fedpaq.errors import WireFormatError
from fedpaq.kernels import numba as compiled


@given(st.lists(st.integers(0, 10**7) | st.integers(0, 3), min_size=1, max_size=tokens.NUM_TOKENS))
@settings(max_examples=300, deadline=None)
def test_normalised_frequencies_sum_to_4096_and_lose_no_token(counts):
    counts = np.array(counts, np.int64)
    result = frequencies.normalise(counts)
    assert result.sum() == (frequencies.TOTAL if counts.any() else 0)
    assert np.array_equal(result > 0, counts > 0)


def test_normalising_many_rare_tokens_leaves_the_common_ones_positive():
    for common in range(1, tokens.NUM_TOKENS):
        counts = np.ones(tokens.NUM_TOKENS, np.int64)
        counts[:common] = 10**9
        result = frequencies.normalise(counts)
        assert result.min() >= 1
        assert result.sum() == frequencies.TOTAL


def test_the_side_stream_is_the_same_with_and_without_numba(monkeypatch):
    rng = np.random.default_rng(0)
    classes = rng.integers(0, 24, 500).astype(np.uint8)
    tables = frequencies.normalise(rng.integers(0, 1000, (24, 3, 128)) * (np.arange(128) < 90))
    side = frequencies.encode_side(classes, tables, 90)
    for _ in range(2):
        read_classes, read_tables = frequencies.decode_side(memoryview(side), 500, 90)
        assert np.array_equal(read_classes, classes)
        assert np.array_equal(read_tables, tables)
        monkeypatch.setattr(compiled, "load", lambda name: None)
    assert frequencies.encode_side(classes, tables, 90) == side


@pytest.mark.parametrize("numba", [True, False])
@pytest.mark.parametrize(("table", "fault"), [([4095], "sum"), ([5000], "sum"), ([2**40], "sum"), ([0], "empty")])
def test_tables_that_do_not_add_up_are_refused(table, fault, numba, monkeypatch):
    if not numba:
        monkeypatch.setattr(compiled, "load", lambda name: None)
    encoder = RangeEncoder()
    tables = np.zeros((24, 3, 128), np.int64)
    tables[1, 0, : len(table)] = table
    monkeypatch.setattr(frequencies, "TOTAL", 2**50)  # let the encoder write what it would refuse
    frequencies.pass_side(encoder, 1, 3, (np.array([1]), tables))
    monkeypatch.setattr(frequencies, "TOTAL", 4096)
    side = encoder.finish()
    body = bytes([len(side)]) + side + bytes(16)
    with pytest.raises(WireFormatError, match=fault):
        block_code.decode(memoryview(body), 5, 1)


@pytest.mark.parametrize("numba", [True, False])
def test_classes_out_of_range_are_refused(numba, monkeypatch):
    encoder = RangeEncoder()
    monkeypatch.setattr(frequencies, "CLASSES", 100)
    frequencies.pass_side(encoder, 1, 1, (np.array([30]), np.zeros((100, 3, 128), np.int64)))
    monkeypatch.setattr(frequencies, "CLASSES", 24)
    if not numba:
        monkeypatch.setattr(compiled, "load", lambda name: None)
    with pytest.raises(WireFormatError, match="class"):
        frequencies.decode_side(memoryview(encoder.finish()), 1, 1)


def test_zigzag_is_undone():
    assert [frequencies.unzigzag(frequencies.zigzag(step)) for step in range(-50, 50)] == list(range(-50, 50))
