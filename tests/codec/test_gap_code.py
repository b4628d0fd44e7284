"""The gap code: the compiled bytes are the twin's."""

from __future__ import annotations

import numpy as np
import pytest

from codec_cases import arithmetic_message, gaussian_message, uneven_message
from fedpaq.codec import gap_code
from fedpaq.codec.range_coder import RangeDecoder
from fedpaq.errors import WireFormatError
from fedpaq.kernels import numba as compiled
from fedpaq.quantizers.nonzeros import collect, count

CASES = [
    maker(dimension, levels, bucket_size)
    for maker in (gaussian_message, uneven_message)
    for dimension in (1, 90, 1200)
    for levels in (1, 6, 300, 32767)
    for bucket_size in (None, 50)
]


def streams(message):
    rows = message.signed_levels[None]
    found = collect(rows, count(rows))
    width = message.bucket_size or message.dimension
    return gap_code.encode_nonzeros(found.ends, found.positions, found.values, message.dimension, message.levels, width)


def test_the_compiled_encoder_writes_the_bytes_of_the_twin():
    for message in CASES:
        at = np.flatnonzero(message.signed_levels)
        width = message.bucket_size or message.dimension
        expected = gap_code.encode_numpy(at, message.signed_levels[at], message.dimension, message.levels, width)
        assert streams(message) == [expected]


def test_the_twin_reads_what_the_compiled_encoder_wrote():
    for message in CASES:
        at = np.flatnonzero(message.signed_levels)
        decoder = RangeDecoder(streams(message)[0])
        width = message.bucket_size or message.dimension
        nonzeros = gap_code.walk(decoder, message.dimension, message.levels, width, len(at), None)
        decoder.finish()
        assert nonzeros == list(zip(at.tolist(), message.signed_levels[at].tolist(), strict=True))


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
