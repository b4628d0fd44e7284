"""Code: the wire form of one kind of message. What a new quantizer brings to travel in bytes of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedpaq.codec.frame import Header
from fedpaq.quantizers.message import Float64, Message


def _as_it_is(header: Header) -> Header:
    return header


def _nothing(header: Header, message: Any) -> dict[str, Any]:
    return {}


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
    read: Callable[[Header], Header] = _as_it_is  # takes fields out of the body, checked, before anything is decoded
    add: Callable[[Header, Float64, float], None] | None = None  # adds weight * message without making it
    describe: Callable[[Header, Any], dict[str, Any]] = _nothing  # what `fedpaq inspect` shows of a message
    variance: Callable[[Header], float] | None = None  # q of whatever quantizer made a payload with this header
