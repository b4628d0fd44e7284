"""Bytes that are not a payload: WireFormatError and nothing else, before anything large is allocated."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codec_cases import arithmetic_message, gaussian_message, level_header, reseal, uneven_message
from fedpaq.codec import accumulate, decode, encode, read_header
from fedpaq.codec.block_code import encode as encode_blocks
from fedpaq.codec.frame import BLOCK, GAP, RAW, VERSION, pack_header, pack_varint, seal
from fedpaq.errors import WireFormatError
from fedpaq.kernels import numba as compiled
from fedpaq.quantizers import QuantizedMessage, RawMessage
from fedpaq.quantizers.rotated.message import zero_message
from fedpaq.quantizers.rotated.rotation import Blocks
from rotated_cases import KEY, arithmetic_rotated

ONE = np.ones(1, "<f4").tobytes()
ROTATED = 3


def block_frame(message):
    header = level_header(BLOCK, message.dimension, message.levels, message.bucket_size)
    return seal(header, message.norms.tobytes(), encode_blocks(message.signed_levels, message.levels))


FRAMES = {
    "sparse": encode(gaussian_message(785, 1)),
    "buckets": encode(uneven_message(300, 10, 64)),
    "dense": encode(gaussian_message(200, 300)),
    "zeros": encode(QuantizedMessage(np.zeros(9, np.int8), np.zeros(1, np.float32), 1)),
    "raw": encode(RawMessage(np.linspace(-1, 1, 9).astype(np.float32))),
    "block": block_frame(uneven_message(600, 300)),
    "rotated": encode(arithmetic_rotated(785, 1, 1, 40)),
    "rotated-blocks": encode(arithmetic_rotated(5000, 5, 3, 60)),
    "rotated-zeros": encode(zero_message(Blocks(9, 1), None)),
}


def refuses(payload, **expected):
    with pytest.raises(WireFormatError):
        decode(payload, **expected)


@pytest.mark.parametrize("name", FRAMES)
def test_truncation_at_each_byte_is_refused(name):
    for size in range(len(FRAMES[name])):
        refuses(FRAMES[name][:size])


@pytest.mark.parametrize("name", FRAMES)
def test_each_flipped_bit_is_refused(name):
    for bit in range(8 * len(FRAMES[name])):
        frame = bytearray(FRAMES[name])
        frame[bit // 8] ^= 1 << bit % 8
        refuses(bytes(frame))


@pytest.mark.parametrize("name", FRAMES)
def test_trailing_garbage_is_refused_even_with_a_correct_crc(name):
    for garbage in (b"\0", b"\1", b"\xff" * 9):
        refuses(FRAMES[name] + garbage)
        refuses(reseal(FRAMES[name][:-4] + garbage + b"0000"))


@pytest.mark.parametrize("name", FRAMES)
def test_a_shortened_body_with_a_correct_crc_never_passes_for_the_message(name):
    original = decode(FRAMES[name])
    for cut in range(1, len(FRAMES[name]) - 8):
        with contextlib.suppress(WireFormatError):
            assert decode(reseal(FRAMES[name][: -4 - cut] + b"0000")) != original


@pytest.mark.parametrize("name", FRAMES)
def test_a_hostile_bit_with_a_correct_crc_gives_an_error_or_another_message(name):
    expected = read_header(FRAMES[name]).dimension
    original = decode(FRAMES[name])
    for bit in range(24, 8 * len(FRAMES[name]) - 32):
        frame = bytearray(FRAMES[name])
        frame[bit // 8] ^= 1 << bit % 8
        try:
            message = decode(reseal(bytes(frame)), dimension=expected)
        except WireFormatError:
            continue
        assert message != original
        assert message.dimension == expected
        if isinstance(message, QuantizedMessage):
            assert np.abs(message.signed_levels.astype(int)).max() <= message.levels


@given(st.sampled_from(sorted(FRAMES)), st.data())
@settings(max_examples=300, deadline=None)
def test_both_twins_judge_a_hostile_body_alike(name, data):
    header = read_header(FRAMES[name])
    start = header.payload_bytes - 4 - len(header.body)
    body = bytearray(header.body)
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    kept = data.draw(st.integers(0, len(body)))
    frame = reseal(FRAMES[name][:start] + bytes(body[:kept]) + b"0000")
    outcomes = []
    for load in (compiled.load, lambda name: None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compiled, "load", load)
            try:
                outcomes.append(decode(frame, dimension=header.dimension))
            except WireFormatError:
                outcomes.append(None)
    assert outcomes[0] == outcomes[1]


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_random_bytes_are_refused(noise):
    refuses(noise)
    refuses(seal(noise))


def decoded(frame, dimension):
    """Return the message, or None where the decoder refuses."""
    try:
        return decode(frame, dimension=dimension)
    except WireFormatError:
        return None


def check_random_body(code, dimension, levels, body):
    """Both twins decode a body to one valid message or both refuse it; return the message."""
    header = level_header(code, dimension, 0 if code == RAW else levels, None)
    frame = seal(header, b"" if code == RAW else ONE, body)
    message = decoded(frame, dimension)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "load", lambda name: None)
        assert decoded(frame, dimension) == message, "the twins disagree"
    if message is None:
        return None
    assert message.dimension == dimension and np.isfinite(message.dequantize()).all()
    again = encode(message)
    if code == BLOCK:  # the sender is free to choose its tables, and the encoder to choose the code
        assert decode(again) == message
    else:
        assert again == frame, "two frames of one message"
    if code != RAW:
        assert message.levels == levels and np.abs(message.signed_levels.astype(int)).max() <= levels
    return message


@given(st.sampled_from([RAW, GAP, BLOCK]), st.integers(1, 2000), st.integers(1, 32767), st.binary(max_size=80))
@settings(max_examples=200, deadline=None)
def test_random_bodies_decode_or_are_refused(code, dimension, levels, body):
    check_random_body(code, dimension, levels, body)


@pytest.mark.parametrize("code", [RAW, GAP])
def test_random_bodies_of_the_right_length_are_often_messages(code):
    """So that the test above has something to judge: short bodies, and counts of non-zeros that fit them."""
    rng, accepted = np.random.default_rng(code), 0
    for _ in range(300):
        dimension = int(rng.integers(1, 6))
        count = bytes([int(rng.integers(0, dimension + 1))]) if code == GAP else b""
        size = 4 * dimension if code == RAW else int(rng.integers(0, 4))
        levels = int(rng.choice([1, 3, 127, 32767]))
        accepted += check_random_body(code, dimension, levels, count + rng.bytes(size)) is not None
    assert accepted >= 30


def test_a_wrong_dimension_is_refused_before_allocation():
    payload = encode(gaussian_message(785, 1))
    with pytest.raises(WireFormatError, match="dimension=785 of the payload is not the 784 expected"):
        decode(payload, dimension=784)
    with pytest.raises(WireFormatError, match="785"):
        accumulate(payload, np.zeros(786))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, -1.0, -0.0])
def test_a_norm_that_is_no_norm_is_refused(bad):
    for code in (GAP, BLOCK):
        refuses(seal(level_header(code, 3, 1, None), struct.pack("<f", bad), b"\0"))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_raw_number_that_is_not_finite_is_refused(bad):
    refuses(seal(level_header(RAW, 2, 0, None), struct.pack("<2f", 1.0, bad)))


def test_levels_above_s_are_refused():
    wide = encode(QuantizedMessage(np.array([9, -9, 9], np.int8), np.ones(1, np.float32), 9))
    with pytest.raises(WireFormatError):
        decode(reseal(wide[:4] + b"\x05" + wide[5:]))
    wide = block_frame(QuantizedMessage(np.full(40, 31, np.int8), np.ones(1, np.float32), 31))
    with pytest.raises(WireFormatError):
        decode(reseal(wide[:4] + bytes([30]) + wide[5:]))


def test_headers_out_of_range_are_refused():
    def frame(*fields):
        return seal(b"FQ" + bytes([VERSION << 4 | GAP]), *map(pack_varint, fields), ONE, b"\0")

    assert decode(frame(3, 1, 0)).dimension == 3
    refuses(frame(0, 1, 0))  # no coordinates
    refuses(frame(3, 0, 0))  # no levels
    refuses(frame(3, 32768, 0))
    refuses(frame(2**40, 1, 0), dimension=2**40)
    refuses(frame(2**63, 1, 0))
    refuses(frame(3, 1, 2))  # two norms announced, one there
    refuses(seal(b"FQ" + bytes([VERSION << 4 | GAP]) + b"\x83\x00" + b"\x01\x00" + ONE + b"\0"))  # long form
    refuses(seal(b"FQ" + bytes([VERSION << 4 | GAP]) + b"\xff" * 30))


def test_a_future_version_is_named():
    payload = bytearray(encode(gaussian_message(10, 1)))
    payload[2] += 16
    with pytest.raises(WireFormatError, match="version=2 of the payload is newer than 1; upgrade"):
        decode(reseal(bytes(payload)))


def test_unknown_codes_and_foreign_bytes_are_refused():
    with pytest.raises(WireFormatError, match="code=9"):
        decode(seal(b"FQ\x19\x03"))
    with pytest.raises(WireFormatError, match="not a fedpaq frame"):
        decode(b"PK\x03\x04 this is a zip file")
    with pytest.raises(WireFormatError, match="str is not contiguous bytes"):
        decode("text")
    with pytest.raises(WireFormatError, match="contiguous"):
        decode(np.zeros((4, 4), np.uint8)[:, ::2])


@pytest.mark.parametrize("code", [RAW, GAP, BLOCK])
def test_lengths_that_lie_allocate_nothing(code):
    header = level_header(code, 2**40 - 1, 0 if code == RAW else 1, None)
    frame = seal(header, ONE, b"\x05" + bytes(20))
    tracemalloc.start()
    refuses(frame)
    if code == RAW:
        refuses(frame, dimension=2**40 - 1)
    refuses(seal(level_header(GAP, 2**40 - 1, 1, 1), ONE * 5))  # a norm for each of 2^40 buckets
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000


@pytest.mark.parametrize("blocks", [1, 5])
def test_a_rotated_frame_that_announces_much_allocates_no_more_than_its_dimension(blocks):
    content = pack_varint(blocks) + pack_varint(10**6) + b"\x01\x03\xc0\x3f" + b"\x05" * 30
    frame = seal(pack_header(ROTATED, 2**40 - 1), content)
    tracemalloc.start()
    refuses(frame)
    refuses(seal(pack_header(ROTATED, 10**6), content[:3]), dimension=10**6)
    small = tracemalloc.get_traced_memory()[1]
    refuses(seal(pack_header(ROTATED, 10**6), content), dimension=10**6)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert small < 100_000 and peak < 32 * 2**20  # positions and levels of a million non-zeros


@pytest.mark.parametrize("name", ["rotated", "rotated-blocks"])
def test_estimates_of_hostile_rotated_frames_are_finite(name):
    rng, dimension, accepted = np.random.default_rng(0), read_header(FRAMES[name]).dimension, 0
    for _ in range(300):
        frame = bytearray(FRAMES[name])
        frame[rng.integers(4, len(frame) - 4)] = rng.integers(256)
        with contextlib.suppress(WireFormatError):
            message = decode(reseal(bytes(frame)), dimension=dimension, key=KEY)
            assert np.isfinite(message.dequantize()).all()
            accepted += 1
    assert accepted >= 3  # a changed scale is another message


def test_dimensions_beyond_32_bits_are_arithmetic_only():
    frame = seal(level_header(GAP, 2**33 + 1, 1, 2**31), ONE * 5, b"\0")
    header = read_header(frame, dimension=2**33 + 1)
    assert (header.dimension, header.norms.size, header.bucket_size) == (2**33 + 1, 5, 2**31)
    with pytest.raises(WireFormatError, match="pass dimension="):
        decode(frame)


def test_more_nonzeros_than_coordinates_are_refused():
    refuses(seal(level_header(GAP, 3, 1, None), ONE, pack_varint(4), b"\x80"))


@pytest.mark.parametrize("name", FRAMES)
def test_a_bad_payload_leaves_the_total_as_it_was(name):
    dimension = read_header(FRAMES[name]).dimension
    total = np.arange(dimension, dtype=np.float64)
    frame = FRAMES[name]
    for payload in (frame[:-1], reseal(frame[:-4] + b"\x01" + b"0000"), reseal(frame[:9] + b"0000")):
        with pytest.raises(WireFormatError):
            accumulate(payload, total, 3.0)
    assert np.array_equal(total, np.arange(dimension))


def test_bytes_of_every_kind_are_read():
    message = arithmetic_message(100, 3, 4)
    payload = encode(message)
    for view in (bytearray(payload), memoryview(payload), np.frombuffer(payload, np.uint8)):
        assert decode(view) == message
