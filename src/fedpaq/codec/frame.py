"""Frame: the bytes around a body; written and read in one place.

    magic 'F' 'Q' | version << 4 | code | dimension | levels | bucket_size | norms | body | CRC-32
          2 bytes |              1 byte |  varint   | varint |   varint    | 4 each|      | 4 bytes

``levels``, ``bucket_size`` (0: one norm) and ``norms`` are absent from a raw frame. Integers are
little-endian base 128, seven bits a byte, in their shortest form; norms are IEEE float32, little-endian.
The CRC (zlib's) covers every byte before it and finds any burst of up to 32 flipped bits.

``read_header`` checks all of it by arithmetic on the header alone, before anything is allocated.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedpaq.errors import WireFormatError
from fedpaq.quantizers.message import MAX_BUCKET_SIZE, MAX_LEVELS, Float32, num_buckets

MAGIC = b"FQ"
VERSION = 1
RAW, GAP, BLOCK = 0, 1, 2
CODE_NAMES = {RAW: "raw", GAP: "gap", BLOCK: "block"}
MAX_DIMENSION = 2**40 - 1
CRC_BYTES = 4


@dataclass(frozen=True, eq=False)
class Header:
    """What a payload says about itself before its body is decoded."""

    version: int
    code: int
    dimension: int  # p
    levels: int  # s; 0: raw float32
    bucket_size: int | None
    norms: Float32  # (1,) or (ceil(p / bucket_size),); empty for raw float32
    payload_bytes: int
    body: memoryview = field(repr=False)

    @property
    def code_name(self) -> str:
        """ "raw", "gap" or "block"."""
        return CODE_NAMES[self.code]

    @property
    def bucket_width(self) -> int:
        """Coordinates that share a norm."""
        return self.bucket_size or self.dimension


def pack_varint(value: int) -> bytes:
    """Return a non-negative integer in base 128, low digits first.

    >>> pack_varint(785).hex()
    '9106'
    """
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    digits.append(value)
    return bytes(digits)


def read_varint(data: memoryview, at: int, name: str, most: int) -> tuple[int, int]:
    """Return (value, position after it); refuse what ``pack_varint`` would not have written."""
    value, shift = 0, 0
    while True:
        if at >= len(data):
            raise WireFormatError(f"the payload ends inside {name}; it is truncated")
        digit = data[at]
        at += 1
        value |= (digit & 0x7F) << shift
        shift += 7
        if value > most:
            raise WireFormatError(f"{name} of the payload exceeds {most}; it is corrupt")
        if digit < 0x80:
            break
    if digit == 0 and shift > 7:
        raise WireFormatError(f"{name} of the payload is not in its shortest form; it is corrupt")
    return value, at


def pack_header(code: int, dimension: int, levels: int, bucket_size: int | None) -> bytes:
    """Return the header's bytes up to the norms; levels = 0 stands for raw float32."""
    start = MAGIC + bytes([VERSION << 4 | code]) + pack_varint(dimension)
    return start + pack_varint(levels) + pack_varint(bucket_size or 0) if levels else start


def seal(*parts: bytes) -> bytes:
    """Join the parts of a frame and append their CRC."""
    frame = b"".join(parts)
    return frame + struct.pack("<I", zlib.crc32(frame))


def as_bytes(payload: Any) -> memoryview:
    """Return a flat view of the payload's bytes."""
    try:
        return memoryview(payload).cast("B")
    except (TypeError, ValueError) as error:
        raise WireFormatError(f"payload of type {type(payload).__name__} is not contiguous bytes") from error


def read_header(payload: Any, *, dimension: int | None = None) -> Header:
    """Return the checked header of a payload; it must announce ``dimension`` where that is given."""
    data = as_bytes(payload)
    code = _read_code(data)
    announced, at = read_varint(data, 3, "dimension", MAX_DIMENSION)
    if announced == 0:
        raise WireFormatError("dimension=0 of the payload is empty; a message has at least one coordinate")
    if dimension is not None and announced != dimension:
        raise WireFormatError(f"dimension={announced} of the payload is not the {dimension} expected")
    levels, bucket_size, norms = 0, None, np.zeros(0, np.float32)
    if code != RAW:
        levels, at = read_varint(data, at, "levels", MAX_LEVELS)
        if levels == 0:
            raise WireFormatError(f"levels=0 of the payload is out of range; allowed: 1..{MAX_LEVELS}")
        width, at = read_varint(data, at, "bucket_size", MAX_BUCKET_SIZE)
        bucket_size = width or None
        norms, at = _read_norms(data, at, num_buckets(announced, bucket_size))
    return Header(VERSION, code, announced, levels, bucket_size, norms, len(data), data[at:-CRC_BYTES])


def _read_code(data: memoryview) -> int:
    """Check magic, CRC and version; return the code id."""
    if len(data) < 3 + CRC_BYTES:
        raise WireFormatError(f"a payload of {len(data)} bytes is too short; it is truncated")
    if data[:2] != MAGIC:
        raise WireFormatError(
            f"the payload starts with {bytes(data[:2])!r}, not {MAGIC!r}; it is not a fedpaq frame"
        )
    version, code = data[2] >> 4, data[2] & 0x0F
    if version > VERSION:
        raise WireFormatError(f"version={version} of the payload is newer than {VERSION}; upgrade fedpaq")
    if zlib.crc32(data[:-CRC_BYTES]) != int.from_bytes(data[-CRC_BYTES:], "little"):
        raise WireFormatError("the CRC of the payload does not match; it is corrupt or truncated")
    if version != VERSION or code not in CODE_NAMES:
        raise WireFormatError(f"version={version}, code={code} of the payload is unknown; codes: 0..{BLOCK}")
    return code


def _read_norms(data: memoryview, at: int, count: int) -> tuple[Float32, int]:
    """Return ``count`` finite, non-negative norms and the position after them."""
    stop = at + 4 * count
    if stop > len(data) - CRC_BYTES:
        raise WireFormatError(f"the payload ends before its {count} norms; it is truncated")
    norms = np.frombuffer(data[at:stop], "<f4").astype(np.float32)
    if not np.isfinite(norms).all() or np.signbit(norms).any():
        raise WireFormatError("a norm of the payload is negative, infinite or NaN; it is corrupt")
    return norms, stop
