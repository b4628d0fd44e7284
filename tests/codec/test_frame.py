"""The frame, field by field: varints against Python's integers, headers by hand, each refusal in words."""

from __future__ import annotations

import dataclasses
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codec_cases import arithmetic_message, level_header, reseal
from fedpaq.codec import CODES, decode, encode, read_header
from fedpaq.codec.frame import BLOCK, GAP, MAX_DIMENSION, RAW, VERSION, as_bytes, pack_varint, read_varint, seal
from fedpaq.errors import WireFormatError
from fedpaq.quantizers import QuantizedMessage, RawMessage

ONE = struct.pack("<f", 1.0)


def digits_of(value):
    """Base 128, low digits first: the definition, by repeated division."""
    digits = []
    while True:
        value, digit = divmod(value, 128)
        digits.append(digit + 128 * (value > 0))
        if not value:
            return bytes(digits)


@given(st.integers(0, 2**70) | st.integers(0, 300), st.binary(max_size=3), st.binary(max_size=3))
@settings(max_examples=50, deadline=None)
def test_integers_come_back_from_anywhere_in_the_bytes(value, before, after):
    assert pack_varint(value) == digits_of(value)
    data = memoryview(before + pack_varint(value) + after)
    assert read_varint(data, len(before), "it", 2**70) == (value, len(before) + len(digits_of(value)))


@pytest.mark.parametrize(("value", "size"), [(0, 1), (127, 1), (128, 2), (16_383, 2), (16_384, 3), (2**40 - 1, 6)])
def test_an_integer_takes_a_byte_for_every_seven_bits(value, size):
    assert len(pack_varint(value)) == size


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "the payload ends inside levels; it is truncated"),
        (b"\x80", "the payload ends inside levels; it is truncated"),
        (b"\x80\x00", "levels of the payload is not in its shortest form; it is corrupt"),
        (b"\x8f\x80\x00", "levels of the payload is not in its shortest form; it is corrupt"),
        (b"\x65", "levels of the payload exceeds 100; it is corrupt"),
        (b"\xff" * 1000, "levels of the payload exceeds 100; it is corrupt"),
    ],
)
def test_integers_no_encoder_writes_are_refused_by_name(data, complaint):
    with pytest.raises(WireFormatError, match=f"^{complaint}$"):
        read_varint(memoryview(data), 0, "levels", 100)


def test_the_largest_integer_allowed_is_read():
    assert read_varint(memoryview(b"\x64"), 0, "levels", 100) == (100, 1)


def test_a_header_written_by_hand():
    """dimension 785 = 0x11 + 6 * 128, levels 300 = 0x2c + 2 * 128, bucket 64, 13 norms, no non-zeros."""
    norms = struct.pack("<13f", *range(13))
    front = b"FQ" + b"\x11" + b"\x91\x06" + b"\xac\x02" + b"\x40" + norms + b"\x00"
    frame = front + struct.pack("<I", zlib.crc32(front))
    header = read_header(frame, dimension=785)
    assert (header.version, header.code, header.code_name) == (1, GAP, "gap")
    assert (header.dimension, header.levels, header.bucket_size, header.bucket_width) == (785, 300, 64, 64)
    assert header.norms.tolist() == list(range(13)) and header.norms.dtype == np.float32
    assert header.payload_bytes == len(frame) and bytes(header.body) == b"\x00"
    zeros = QuantizedMessage(np.zeros(785, np.int16), header.norms, 300, 64)
    assert decode(frame) == zeros and encode(zeros) == frame


def test_a_raw_header_has_neither_levels_nor_norms():
    header = read_header(encode(RawMessage(np.array([1.5, -2.0], np.float32))))
    assert (header.code_name, header.levels, header.bucket_size, header.norms.size) == ("raw", 0, None, 0)
    assert bytes(header.body) == struct.pack("<2f", 1.5, -2.0) and header.bucket_width == 2


def test_every_code_has_a_name_and_a_body_that_repr_leaves_out():
    names = {id: name for code in CODES.values() for id, name in code.names.items()}
    assert names == {RAW: "raw", GAP: "gap", BLOCK: "block"}
    header = read_header(encode(arithmetic_message(40, 3, 2)))
    assert "body" not in repr(header) and "dimension=40" in repr(header)
    with pytest.raises(dataclasses.FrozenInstanceError):
        header.levels = 9


@given(
    st.sampled_from([GAP, BLOCK]),
    st.integers(1, MAX_DIMENSION),
    st.integers(1, 32767),
    st.none() | st.integers(1, 2**62),
)
@settings(max_examples=50, deadline=None)
def test_headers_come_back_or_lack_their_norms(code, dimension, levels, bucket_size):
    buckets = 1 if bucket_size is None else -(-dimension // bucket_size)
    frame = seal(level_header(code, dimension, levels, bucket_size), ONE * min(buckets, 50))
    if buckets > 50:
        with pytest.raises(WireFormatError, match=f"the payload ends before its {buckets} norms; it is truncated"):
            read_header(frame)
        return
    header = read_header(frame)
    assert (header.code, header.dimension, header.levels) == (code, dimension, levels)
    assert header.bucket_size == bucket_size and header.norms.tolist() == [1.0] * buckets
    assert len(header.body) == 0


REFUSALS = {
    "a payload of 6 bytes is too short; it is truncated": b"FQ\x11123",
    "the payload starts with b'QF', not b'FQ'; it is not a fedpaq frame": b"QF\x11\x03\x01\x00" + ONE * 2,
    "version=15 of the payload is newer than 1; upgrade fedpaq": b"FQ\xf1" + bytes(20),
    "the CRC of the payload does not match; it is corrupt or truncated": b"FQ\x11\x03" + bytes(20),
    "version=0 of the payload is unknown; this is version 1": seal(b"FQ\x01\x03"),
    r"code=7 of the payload is unknown; known: 0 \(raw\), 1 \(gap\), 2 \(block\)": seal(b"FQ\x17\x03"),
    "dimension=0 of the payload is empty; a message has at least one coordinate": seal(b"FQ\x11\x00\x01\x00"),
    "dimension of the payload exceeds 1099511627775; it is corrupt": seal(b"FQ\x10" + pack_varint(2**40)),
    r"levels=0 of the payload is out of range; allowed: 1\.\.32767": seal(b"FQ\x11\x03\x00\x00", ONE),
    "levels of the payload exceeds 32767; it is corrupt": seal(b"FQ\x11\x03" + pack_varint(32768)),
    "bucket_size of the payload exceeds 4611686018427387904": seal(b"FQ\x11\x03\x01" + pack_varint(2**62 + 1)),
    "the payload ends before its 3 norms; it is truncated": seal(b"FQ\x11\x03\x01\x01", ONE * 2),
    "a norm of the payload is negative, infinite or NaN; it is corrupt": seal(b"FQ\x11\x03\x01\x00", b"\0\0\x80\x7f"),
    "the payload ends inside the number of non-zeros; it is truncated": seal(b"FQ\x11\x03\x01\x00", ONE),
    "the number of non-zeros of the payload exceeds 3; it is corrupt": seal(b"FQ\x11\x03\x01\x00", ONE, b"\x04"),
    "a raw body of 8 bytes does not hold dimension=3 float32": seal(b"FQ\x10\x03", ONE * 2),
    "a raw payload holds NaN or infinity; it is corrupt": seal(b"FQ\x10\x01", b"\0\0\xc0\x7f"),
    "the payload ends inside the side stream's length; it is truncated": seal(b"FQ\x12\x03\x01\x00", ONE),
    "the side stream's length of the payload exceeds 2; it is corrupt": seal(b"FQ\x12\x03\x01\x00", ONE, b"\x50\x00"),
    "the payload ends inside its side stream; it is truncated": seal(b"FQ\x12\x03\x01\x00", ONE, b"\x02\x00"),
}


@pytest.mark.parametrize("complaint", REFUSALS)
def test_each_fault_is_told_in_its_own_words(complaint):
    with pytest.raises(WireFormatError, match=f"^{complaint}"):
        decode(REFUSALS[complaint])


def test_no_word_of_a_payload_is_quoted_at_length():
    with pytest.raises(WireFormatError) as caught:
        decode(b"\xff\xfe" + bytes(10_000))
    assert len(str(caught.value)) < 120


def test_the_expected_dimension_is_compared_before_the_norms_are_read():
    frame = seal(level_header(GAP, 10**9, 1, 1), ONE)
    with pytest.raises(WireFormatError, match="dimension=1000000000 of the payload is not the 10 expected"):
        read_header(frame, dimension=10)


@pytest.mark.parametrize("name", ["version", "code", "dimension", "levels", "norm", "body"])
def test_a_resealed_field_changes_that_field_alone(name):
    frame = bytearray(encode(arithmetic_message(100, 5, 9)))
    at, value = {
        "version": (2, 0x01),
        "code": (2, 0x12),
        "dimension": (3, 99),
        "levels": (4, 6),
        "norm": (8, 1),
        "body": (10, 0),
    }[name]
    frame[at] ^= frame[at] ^ value
    changed = reseal(bytes(frame))
    if name == "version":
        with pytest.raises(WireFormatError, match="version=0"):
            read_header(changed)
        return
    before, after = read_header(encode(arithmetic_message(100, 5, 9))), read_header(changed)
    fields = ["code", "dimension", "levels", "bucket_size"]
    differing = [field for field in fields if getattr(before, field) != getattr(after, field)]
    differing += ["norm"] * (before.norms.tolist() != after.norms.tolist())
    differing += ["body"] * (bytes(before.body) != bytes(after.body))
    assert differing == [name]


def test_the_crc_is_zlib_s_of_every_byte_before_it():
    frame = seal(b"ab", b"", b"c")
    assert frame == b"abc" + zlib.crc32(b"abc").to_bytes(4, "little")


def test_bytes_are_viewed_and_not_copied():
    payload = bytearray(b"FQ123456")
    view = as_bytes(payload)
    payload[0] = 7
    assert view[0] == 7 and view.nbytes == 8 and VERSION == 1
