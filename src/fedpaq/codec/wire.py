"""Messages to payloads and back: ``encode``, ``decode``, ``accumulate``; and the table of codes."""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from numbers import Real
from typing import Any

import numpy as np

from fedpaq.arrays import Float64, Int64
from fedpaq.codec import frame, level_code, raw_code
from fedpaq.codec.frame import Code, Header, frame_bytes, pack_header, seal
from fedpaq.config import require_int
from fedpaq.errors import ConfigError, WireFormatError, unknown_name
from fedpaq.quantizers import registry
from fedpaq.quantizers.message import Message, QuantizedBatch, require_total
from fedpaq.randomness import Key

CODES: dict[str, Code] = {"raw": raw_code.CODE, "levels": level_code.CODE}
OWN_IDS = {id: code for code in CODES.values() for id in code.names}
TRUSTED_DIMENSION = 2**28  # the most coordinates a payload may announce to a caller who expects none


def codes() -> Iterator[tuple[str, Code]]:
    """Yield every code with its name: fedpaq's own, then those that registered quantizers bring along."""
    yield from CODES.items()
    for name in registry.names():
        code = getattr(registry.find(name), "wire_code", None)
        if code is not None:
            yield name, code


def find_code(name: str) -> Code:
    """Return the code that a message names."""
    found = CODES.get(name) or next((code for other, code in codes() if other == name), None)
    if found is None:
        raise unknown_name("code", name, [name for name, _ in codes()])
    return found


def code_by_id(id: int) -> Code:
    """Return the code that a frame names, or raise WireFormatError."""
    code = OWN_IDS.get(id) or next((code for _, code in codes() if id in code.names), None)
    if code is None:
        known = ", ".join(f"{id} ({name})" for _, code in codes() for id, name in code.names.items())
        raise WireFormatError(
            f"code={id} of the payload is unknown; known: {known}; install the quantizer that made it"
        )
    return code


def encode(message: Message) -> bytes:
    """Return the payload of a message.

    >>> from fedpaq.quantizers import QuantizedMessage
    >>> message = QuantizedMessage(np.array([0, 0, -1], np.int8), np.array([2.5], np.float32), levels=1)
    >>> len(encode(message)), decode(encode(message), dimension=3) == message
    (16, True)
    """
    return encode_batch([message])[0]


def encode_batch(messages: Sequence[Message]) -> list[bytes]:
    """Return the payloads of many messages, equal to one by one; alike messages share one compiled call."""
    return [payload for name, group in _groups(messages) for payload in _sealed(name, group)]


def measure_batch(messages: Sequence[Message]) -> Int64:
    """Return the length of each payload that ``encode_batch`` makes; most codes tell without making it."""
    sizes = [_measured(name, group) for name, group in _groups(messages)]
    return np.concatenate([np.zeros(0, np.int64), *sizes])


def _groups(messages: Sequence[Message]) -> Iterator[tuple[str, Sequence[Message]]]:
    """Yield messages of one kind in a row, with the name of their code."""
    if hasattr(messages, "code"):  # a batch of one kind
        yield messages.code, messages
        return
    if not isinstance(messages, Iterable):
        raise ConfigError(f"messages of type {type(messages).__name__} is not a list of messages; write [message]")
    for name, group in itertools.groupby(messages, _code_of):
        yield name, list(group)


def _code_of(message: Message) -> str:
    if not hasattr(message, "code"):
        raise ConfigError(
            f"message of type {type(message).__name__} is not a message; quantize the update first, as with "
            "LowPrecision(levels=1).quantize(update, key=fedpaq.Key(seed=0))"
        )
    return message.code


def _sealed(name: str, messages: Sequence[Message]) -> list[bytes]:
    """Return the frames of messages of one kind."""
    dimensions = _dimensions(messages)
    packed = find_code(name).pack(messages)
    return [
        seal(pack_header(id, dimension), content) for dimension, (id, content) in zip(dimensions, packed, strict=True)
    ]


def _measured(name: str, messages: Sequence[Message]) -> Int64:
    """Return the bytes of the frames of messages of one kind."""
    code = find_code(name)
    if code.measure is None:
        return np.array([len(payload) for payload in _sealed(name, messages)], np.int64)
    dimensions = _dimensions(messages)
    around = {dimension: frame_bytes(dimension) for dimension in set(dimensions)}
    return np.array([around[dimension] for dimension in dimensions], np.int64) + code.measure(messages)


def _dimensions(messages: Sequence[Message]) -> list[int]:
    """Return the dimension of each message, or raise ConfigError."""
    if isinstance(messages, QuantizedBatch):  # which would make its messages, one after another
        dimensions = [messages.dimension] * len(messages)
    else:
        dimensions = [message.dimension for message in messages]
    for dimension in set(dimensions):
        require_int("dimension", dimension, 1)
    return dimensions


def read_header(payload: Any, *, dimension: int | None = None, key: Key | None = None) -> Header:
    """Return the checked header of a payload; it must announce ``dimension`` where that is given."""
    return _read(payload, dimension, key)[0]


def _read(payload: Any, dimension: int | None, key: Key | None) -> tuple[Header, Code]:
    if key is not None:
        Key.require(key)
    id, announced, size, content = frame.read(payload, dimension)
    code = code_by_id(id)
    return code.read(Header(frame.VERSION, id, code.names[id], announced, size, content, key=key)), code


def decode(payload: Any, *, dimension: int | None = None, key: Key | None = None) -> Message:
    """Return the message of a payload; raises WireFormatError, nothing else, on bytes that are not one.

    A server should always pass the ``dimension`` it expects: a payload of a few bytes can announce any. Some
    quantizers draw what they need not send from the ``key`` of the update; they need it here again.
    """
    header, code = _read(payload, dimension, key)
    if dimension is None and header.dimension > TRUSTED_DIMENSION:
        raise WireFormatError(
            f"dimension={header.dimension} of the payload exceeds {TRUSTED_DIMENSION}; "
            "pass dimension= to decode to accept it"
        )
    return code.unpack(header)


def accumulate(payload: Any, total: Float64, weight: float = 1.0, *, key: Key | None = None) -> None:
    """Add weight * (the payload's message) to ``total`` (p,), touching only its non-zeros.

    Equal to the bit to ``decode(payload, key=key).add_to(total, weight)``. A payload that raises
    WireFormatError leaves ``total`` as it was.
    """
    require_total(total, np.size(total))  # any dimension: the payload must announce it
    if not (isinstance(weight, Real) and math.isfinite(weight)):
        raise ConfigError(f"weight={weight} is not finite; choose a finite number")
    header, code = _read(payload, total.size, key)
    if code.add is not None:
        code.add(header, total, weight)
    else:
        code.unpack(header).add_to(total, weight)
