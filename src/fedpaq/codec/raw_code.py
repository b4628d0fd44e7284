"""The raw code: float32 values, little-endian, as they are."""

from collections.abc import Sequence

import numpy as np

from fedpaq.arrays import Int64
from fedpaq.codec.frame import RAW, Code, Header, frame_bytes
from fedpaq.errors import ConfigError, WireFormatError
from fedpaq.quantizers.message import RawMessage


def raw_bytes(dimension: int) -> int:
    """Return the length of a float32 payload, which needs no encoding: header, values, CRC."""
    return frame_bytes(dimension) + 4 * dimension


def pack(messages: Sequence[RawMessage]) -> list[tuple[int, bytes]]:
    """Return the content of each message."""
    with np.errstate(over="ignore"):
        rows = [message.values.astype("<f4") for message in messages]
    if not all(np.isfinite(values).all() for values in rows):
        raise ConfigError("message.values holds NaN or infinity; a payload carries finite numbers")
    return [(RAW, values.tobytes()) for values in rows]


def unpack(header: Header) -> RawMessage:
    """Return the message of a raw frame."""
    if len(header.body) != 4 * header.dimension:
        raise WireFormatError(
            f"a raw body of {len(header.body)} bytes does not hold dimension={header.dimension} float32"
        )
    values = np.frombuffer(header.body, "<f4").astype(np.float32)
    if not np.isfinite(values).all():
        raise WireFormatError("a raw payload holds NaN or infinity; it is corrupt")
    return RawMessage(values)


def measure(messages: Sequence[RawMessage]) -> Int64:
    """Return the bytes of each content that ``pack`` makes."""
    return np.array([4 * message.dimension for message in messages], np.int64)


CODE = Code(names={RAW: "raw"}, pack=pack, unpack=unpack, measure=measure)
