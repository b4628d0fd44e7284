"""The side stream in machine code: the twin's bytes, and its faults."""

from __future__ import annotations

import numpy as np
import pytest

from fedpaq.codec import frequencies as twin
from fedpaq.codec.range_coder import RangeDecoder, RangeEncoder
from fedpaq.errors import WireFormatError

TOKENS = 31


def tables(seed, blocks, classes=twin.CLASSES):
    rng = np.random.default_rng(seed)
    chosen = rng.integers(0, classes, blocks).astype(np.uint8)
    counts = np.zeros((twin.CLASSES, twin.CONTEXTS, twin.STRIDE), np.int64)
    for one in np.unique(chosen):
        counts[one, :, :TOKENS] = rng.geometric(0.3, (twin.CONTEXTS, TOKENS)) - 1
    return chosen, twin.normalise(counts)


def read_by_the_twin(side, blocks):
    decoder = RangeDecoder(bytes(side))
    try:
        found = twin.pass_side(decoder, blocks, TOKENS, None)
        decoder.finish()
    except WireFormatError:
        return None
    return found if np.isin(found[1].sum(axis=-1), (0, twin.TOTAL)).all() else None


def read(side, blocks):
    try:
        return twin.decode_side(memoryview(side), blocks, TOKENS)
    except WireFormatError:
        return None


@pytest.mark.parametrize("blocks", [1, 2, 40])
@pytest.mark.parametrize("classes", [1, 3, twin.CLASSES])
def test_the_side_stream_is_the_twin_s_and_comes_back(blocks, classes):
    chosen, frequencies = tables(blocks, blocks, classes)
    side = twin.encode_side(chosen, frequencies, TOKENS)
    encoder = RangeEncoder()
    twin.pass_side(encoder, blocks, TOKENS, (chosen, frequencies))
    assert side == encoder.finish()
    again = twin.decode_side(memoryview(side), blocks, TOKENS)
    assert np.array_equal(again[0], chosen) and np.array_equal(again[1], frequencies)


def test_damaged_side_streams_are_refused_by_both_alike():
    chosen, frequencies = tables(7, 5, 4)
    good, rng, refused = twin.encode_side(chosen, frequencies, TOKENS), np.random.default_rng(0), 0
    for _ in range(60):
        bad = bytearray(good)
        bad[int(rng.integers(len(bad)))] ^= int(rng.integers(1, 256))
        bad = bytes(bad)[: int(rng.integers(1, 2 * len(bad)))]
        mine, expected = read(bad, 5), read_by_the_twin(bad, 5)
        assert (mine is None) == (expected is None)
        if mine is not None:
            assert np.array_equal(mine[0], expected[0]) and np.array_equal(mine[1], expected[1])
        refused += mine is None
    assert refused >= 50
