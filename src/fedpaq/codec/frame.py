"""Frame: the bytes around a message's content; written and read in one place.

    magic 'F' 'Q' | version << 4 | code | dimension | content of the code | CRC-32
          2 bytes |              1 byte |  varint   |                     | 4 bytes

Integers are little-endian base 128, seven bits a byte, in their shortest form. The CRC (zlib's) covers every
byte before it and finds any burst of up to 32 flipped bits. ``read`` checks all of it by arithmetic on the
header alone, before anything is allocated; the content is the business of a ``Code``,
which is what a new quantizer brings to travel in bytes of its own.
"""

import functools
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedpaq.arrays import Float32, Float64, Int64
from fedpaq.errors import WireFormatError
from fedpaq.quantizers.message import Message
from fedpaq.randomness import Key

MAGIC = b"FQ"
VERSION = 1
RAW, GAP, BLOCK = 0, 1, 2  # ids 8 to 15 are free for quantizers outside of fedpaq
MAX_DIMENSION = 2**40 - 1
CRC_BYTES = 4
VARINT_ENDS = 128 ** np.arange(1, 9)  # the first integers that take another byte


@dataclass(frozen=True, eq=False)
class Header:
    """What a payload says about itself before its body is decoded."""

    version: int
    code: int
    code_name: str
    dimension: int  # p
    payload_bytes: int
    body: memoryview = field(repr=False)  # what the code has not yet taken out of the content
    levels: int = 0  # s; 0: a message without levels
    bucket_size: int | None = None
    norms: Float32 = field(default_factory=lambda: np.zeros(0, np.float32))  # (1,) or (ceil(p / bucket_size),)
    key: Key | None = None  # whose message it is, where the receiver says so: it does not travel

    @property
    def bucket_width(self) -> int:
        """Coordinates that share a norm."""
        return self.bucket_size or self.dimension


@dataclass(frozen=True, kw_only=True)
class Code:
    """How messages become the content of frames, and back.

    The content is all that stands between a frame's dimension and its CRC. ``names`` maps each id the code
    uses, 0 to 15, to its name; 8 to 15 are free for quantizers outside of fedpaq. ``unpack`` raises
    WireFormatError for every content that ``pack`` would not have written. The others are optional.
    """

    names: Mapping[int, str]
    pack: Callable[[Sequence[Any]], list[tuple[int, bytes]]]  # messages to (id, content) pairs
    unpack: Callable[[Header], Message]  # a header whose body is the content
    read: Callable[[Header], Header] = lambda header: header  # takes fields out of the body, checked, before decoding
    add: Callable[[Header, Float64, float], None] | None = None  # adds weight * message without making it
    describe: Callable[[Header, Any], dict[str, Any]] = lambda header, message: {}  # what `fedpaq inspect` shows
    variance: Callable[[Header], float] | None = None  # q of whatever quantizer made a payload with this header
    measure: Callable[[Sequence[Any]], Int64] | None = None  # the bytes of what ``pack`` makes, without making it


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


def varint_bytes(values: Int64) -> Int64:
    """Return the length of each integer's varint.

    >>> varint_bytes(np.array([0, 127, 128])).tolist()
    [1, 1, 2]
    """
    return 1 + np.searchsorted(VARINT_ENDS, values, side="right")


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


def read_side(data: memoryview, at: int) -> tuple[memoryview, int]:
    """Return (side stream, position after it), which begins with its length."""
    length, at = read_varint(data, at, "the side stream's length", len(data))
    if length > len(data) - at:
        raise WireFormatError("the payload ends inside its side stream; it is truncated")
    return data[at : at + length], at + length


@functools.lru_cache(maxsize=64)  # every payload of a run has the same
def pack_header(code: int, dimension: int) -> bytes:
    """Return the bytes of a frame before its content."""
    return MAGIC + bytes([VERSION << 4 | code]) + pack_varint(dimension)


def frame_bytes(dimension: int) -> int:
    """Return the bytes of a frame around its content."""
    return len(pack_header(0, dimension)) + CRC_BYTES


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


def read(payload: Any, dimension: int | None = None) -> tuple[int, int, int, memoryview]:
    """Return a payload's code, dimension, bytes and content; it must announce ``dimension`` where given."""
    data = as_bytes(payload)
    code = _read_code(data)
    announced, at = read_varint(data, 3, "dimension", MAX_DIMENSION)
    if announced == 0:
        raise WireFormatError("dimension=0 of the payload is empty; a message has at least one coordinate")
    if dimension is not None and announced != dimension:
        raise WireFormatError(f"dimension={announced} of the payload is not the {dimension} expected")
    if at > len(data) - CRC_BYTES:
        raise WireFormatError("the payload ends inside dimension; it is truncated")
    return code, announced, len(data), data[at:-CRC_BYTES]


def _read_code(data: memoryview) -> int:
    """Check magic, CRC and version; return the code's id."""
    if len(data) < 3 + CRC_BYTES:
        raise WireFormatError(f"a payload of {len(data)} bytes is too short; it is truncated")
    if data[:2] != MAGIC:
        raise WireFormatError(f"the payload starts with {bytes(data[:2])!r}, not {MAGIC!r}; it is not a fedpaq frame")
    version, code = data[2] >> 4, data[2] & 0x0F
    if version > VERSION:
        raise WireFormatError(f"version={version} of the payload is newer than {VERSION}; upgrade fedpaq")
    if zlib.crc32(data[:-CRC_BYTES]) != int.from_bytes(data[-CRC_BYTES:], "little"):
        raise WireFormatError("the CRC of the payload does not match; it is corrupt or truncated")
    if version != VERSION:
        raise WireFormatError(f"version={version} of the payload is unknown; this is version {VERSION}")
    return code
