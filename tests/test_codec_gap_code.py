"""The gap code: the compiled bytes are the twin's."""

from __future__ import annotations

import numpy as np
import pytest

from codec_cases import arithmetic_message, gaussian_message, uneven_message
from fedpaq import compiled
from fedpaq.codec import gap_code
from fedpaq.codec.range_coder import RangeDecoder
from fedpaq.errors import WireFormatError

CASES = [
    maker(dimension, levels, bucket_size)
    for maker in (gaussian_message, uneven_message)
    for dimension in (1, 90, 1200)
    for levels in (1, 6, 300, 32767)
    for bucket_size in (None, 50)
]


def streams(message):
    rows = message.signed_levels[None]
    nonzeros = gap_code.collect(rows, np.array([np.count_nonzero(rows)]))
    width = message.bucket_size or message.dimension
    return gap_code.encode_nonzeros(*nonzeros, message.dimension, message.levels, width)


def test_the_compiled_encoder_writes_the_bytes_of_the_twin():
    for message in CASES:
        at = np.flatnonzero(message.signed_levels)
        width = message.bucket_size or message.dimension
        expected = gap_code.encode_numpy(
            at, message.signed_levels[at], message.dimension, message.levels, width
        )
        assert streams(message) == [expected]


def test_the_twin_reads_what_the_compiled_encoder_wrote():
    for message in CASES:
        at = np.flatnonzero(message.signed_levels)
        decoder = RangeDecoder(streams(message)[0])
        width = message.bucket_size or message.dimension
        nonzeros = gap_code.walk(decoder, message.dimension, message.levels, width, len(at), None)
        decoder.finish()
        assert nonzeros == list(zip(at.tolist(), message.signed_levels[at].tolist(), strict=True))


@pytest.mark.parametrize("offset", range(9))
@pytest.mark.parametrize("dtype", [np.int8, np.int16])
def test_nonzeros_are_collected_at_any_alignment(dtype, offset):
    flat = np.zeros(4096, dtype)
    flat[:: 37 + offset] = -3
    for length in (0, 1, 7, 63, 64, 65, 200, 1000):
        row = flat[offset : offset + length]
        counts = np.array([compiled.load("gap_code").count_row(row)])
        assert counts[0] == np.count_nonzero(row)
        _, positions, values = gap_code.collect(row[None], counts)
        assert np.array_equal(positions, np.flatnonzero(row))
        assert np.array_equal(values, row[positions])


def test_a_count_beyond_16_bits_is_right():
    row = np.ones(100_000, np.int8)
    assert compiled.load("gap_code").count_row(row) == 100_000


def test_a_stream_longer_than_its_first_room_is_written_again(monkeypatch):
    message = arithmetic_message(500, 32767, 1)
    expected = streams(message)
    monkeypatch.setattr(gap_code, "BYTES_PER_NONZERO", 0)
    assert streams(message) == expected


@pytest.mark.parametrize("numba", [True, False])
def test_positions_beyond_the_dimension_are_refused(numba, monkeypatch):
    stream = gap_code.encode_numpy(np.array([99]), np.array([1]), 100, 1, 100)
    if not numba:
        monkeypatch.setattr(compiled, "load", lambda name: None)
    assert gap_code.decode_nonzeros(stream, 100, 1, 100, 1)[0] == [99]
    with pytest.raises(WireFormatError):
        gap_code.decode_nonzeros(b"\x00\x00\x01", 5, 1, 5, 1)
