"""Messages to payloads and back: ``encode``, ``encode_batch``, ``decode``, ``accumulate``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpaq.codec import block_code, gap_code
from fedpaq.codec.frame import (
    BLOCK,
    GAP,
    RAW,
    Header,
    pack_header,
    pack_varint,
    read_header,
    read_varint,
    seal,
)
from fedpaq.config import require_int
from fedpaq.errors import ConfigError, WireFormatError
from fedpaq.quantizers.message import (
    MAX_BUCKET_SIZE,
    MAX_LEVELS,
    Float32,
    Float64,
    Message,
    QuantizedBatch,
    QuantizedMessage,
    RawMessage,
    level_dtype,
    num_buckets,
    valid_notes,
)

# The gap code is never longer to speak of, but above this many non-zeros, one coordinate in eight or denser,
# the block code is ten times faster.
BLOCK_NONZEROS = 2**18
BLOCK_SPARSITY = 8
TRUSTED_DIMENSION = 2**28  # the most coordinates a payload may announce to a caller who expects none


def encode(message: Message) -> bytes:
    """Return the payload of a message.

    >>> message = QuantizedMessage(np.array([0, 0, -1], np.int8), np.array([2.5], np.float32), levels=1)
    >>> len(encode(message)), decode(encode(message), dimension=3) == message
    (16, True)
    """
    return encode_batch([message])[0]


def encode_batch(messages: Sequence[Message]) -> list[bytes]:
    """Return the payloads of many messages, equal to one by one; alike messages share one compiled call."""
    if isinstance(messages, QuantizedBatch):
        return _encode_quantized(messages)
    payloads: list[bytes] = []
    start = 0
    while start < len(messages):
        stop = start + 1
        while stop < len(messages) and _alike(messages[start], messages[stop]):
            stop += 1
        group = messages[start:stop]
        payloads += [_encode_raw(message) for message in group if isinstance(message, RawMessage)]
        quantized = [message for message in group if isinstance(message, QuantizedMessage)]
        payloads += _encode_quantized(_stacked(quantized)) if quantized else []
        start = stop
    return payloads


def decode(payload: Any, *, dimension: int | None = None) -> Message:
    """Return the message of a payload; raises WireFormatError, nothing else, on bytes that are not one.

    A server should always pass the ``dimension`` it expects: a payload of a few bytes can announce any.
    """
    header = _expected_header(payload, dimension)
    if header.code == RAW:
        return RawMessage(_raw_values(header))
    if header.code == BLOCK:
        signed = block_code.decode(header.body, header.dimension, header.levels)
    else:
        positions, values = _nonzeros(header)
        signed = np.zeros(header.dimension, level_dtype(header.levels))
        signed[positions] = values
    return QuantizedMessage(signed, header.norms, header.levels, header.bucket_size)


def accumulate(payload: Any, total: Float64, weight: float = 1.0) -> None:
    """Add weight * (the payload's message) to ``total`` (p,), touching only its non-zeros.

    Equal to the bit to ``decode(payload).add_to(total, weight)``. A payload that raises WireFormatError
    leaves ``total`` as it was.
    """
    if not isinstance(total, np.ndarray) or total.dtype != np.float64 or total.ndim != 1:
        raise ConfigError("total is not a float64 vector; pass np.zeros(dimension)")
    if not total.flags.writeable:
        raise ConfigError("total is read-only; pass np.zeros(dimension)")
    if not math.isfinite(weight):
        raise ConfigError(f"weight={weight} is not finite; choose a finite number")
    header = _expected_header(payload, total.size)
    if header.code != GAP:
        decode(payload, dimension=total.size).add_to(total, weight)
        return
    positions, values = _nonzeros(header)
    units = header.norms.astype(np.float64) / header.levels * weight
    unit = units[0] if header.bucket_size is None else units[positions // header.bucket_size]
    total[positions] += values * unit


def _alike(one: Message, other: Message) -> bool:
    """Whether two messages may share a compiled call (large ones gain nothing and would be copied)."""
    if isinstance(one, RawMessage) or isinstance(other, RawMessage):
        return type(one) is type(other)
    return (
        one.signed_levels.shape == other.signed_levels.shape
        and one.dimension <= 2**20
        and one.levels == other.levels
        and one.bucket_size == other.bucket_size
        and one.signed_levels.dtype == other.signed_levels.dtype
        and one.norms.shape == other.norms.shape
    )


def _encode_raw(message: RawMessage) -> bytes:
    require_int("dimension", message.dimension, 1)
    with np.errstate(over="ignore"):
        values = message.values.astype("<f4")
    if not np.isfinite(values).all():
        raise ConfigError("message.values holds NaN or infinity; a payload carries finite numbers")
    return seal(pack_header(RAW, message.dimension, 0, None), values.tobytes())


def _encode_quantized(batch: QuantizedBatch) -> list[bytes]:
    """Encode the messages of a batch."""
    if not len(batch):
        return []
    batch = _checked(batch)
    in_blocks = suits_blocks(batch.counts, batch.dimension)
    if not in_blocks.any():
        return _sealed(GAP, batch, _gap_bodies(batch))
    for_blocks, for_gaps = batch[np.flatnonzero(in_blocks)], batch[np.flatnonzero(~in_blocks)]
    _refuse_beyond(batch.levels, for_blocks.signed_levels)
    bodies = [block_code.encode(row, batch.levels) for row in for_blocks.signed_levels]
    blocks, gaps = iter(_sealed(BLOCK, for_blocks, bodies)), iter(_sealed(GAP, for_gaps, _gap_bodies(for_gaps)))
    return [next(blocks if in_block else gaps) for in_block in in_blocks]


def _sealed(code: int, batch: QuantizedBatch, bodies: list[bytes]) -> list[bytes]:
    """Return the frames of messages whose bodies these are."""
    header = pack_header(code, batch.dimension, batch.levels, batch.bucket_size)
    return [seal(header, norms.tobytes(), body) for norms, body in zip(batch.norms, bodies, strict=True)]


def suits_blocks(counts: npt.NDArray[np.int64], dimension: int) -> npt.NDArray[np.bool_]:
    """Return which numbers of non-zeros call for the block code."""
    return (counts >= BLOCK_NONZEROS) & (BLOCK_SPARSITY * counts >= dimension)


def _gap_bodies(batch: QuantizedBatch) -> list[bytes]:
    if not len(batch):
        return []
    found, width = batch.nonzeros, batch.bucket_size or batch.dimension
    if valid_notes(batch) is None:  # a quantizer knows its levels
        _refuse_beyond(batch.levels, found.values)
    streams = gap_code.encode_nonzeros(
        found.ends, found.positions, found.values, batch.dimension, batch.levels, width
    )
    return [pack_varint(count) + stream for count, stream in zip(batch.counts.tolist(), streams, strict=True)]


def _checked(batch: QuantizedBatch) -> QuantizedBatch:
    """Return the batch in the types the coders take, or raise ConfigError."""
    rows, levels = batch.signed_levels, batch.levels
    require_int("levels", levels, 1, MAX_LEVELS)
    if rows.ndim != 2 or rows.dtype.kind not in "iu":
        raise ConfigError(
            f"message.signed_levels of shape={rows.shape[1:]}, dtype={rows.dtype} is not a vector of integers; "
            "pass (p,) of int8 or int16"
        )
    require_int("dimension", batch.dimension, 1)
    if batch.bucket_size is not None:
        require_int("bucket_size", batch.bucket_size, 1, MAX_BUCKET_SIZE)
    norms = batch.norms.astype("<f4", copy=False)
    expected = num_buckets(batch.dimension, batch.bucket_size)
    if norms.shape[1:] != (expected,) or not np.isfinite(norms).all() or np.signbit(norms).any():
        raise ConfigError(f"message.norms is not {expected} finite, non-negative numbers")
    if rows.dtype == level_dtype(levels) and norms is batch.norms:
        return batch
    _refuse_beyond(levels, rows)  # before it is made to fit
    return QuantizedBatch(rows.astype(level_dtype(levels)), norms, levels, batch.bucket_size)


def _refuse_beyond(levels: int, signed: npt.NDArray[Any]) -> None:
    if signed.size and (signed.max() > levels or signed.min() < -levels):
        raise ConfigError(f"message.signed_levels exceeds levels={levels}; allowed: -{levels}..{levels}")


def _stacked(messages: Sequence[QuantizedMessage]) -> QuantizedBatch:
    """Return alike messages as a batch, without a copy where there is one."""
    first = messages[0]
    if len(messages) > 1:
        rows = np.stack([message.signed_levels for message in messages])
        norms = np.stack([message.norms for message in messages])
        return QuantizedBatch(rows, norms, first.levels, first.bucket_size)
    batch = QuantizedBatch(
        first.signed_levels[None], np.asarray(first.norms)[None], first.levels, first.bucket_size
    )
    notes = valid_notes(first)
    if notes is not None:
        batch.note(notes)
    return batch


def _expected_header(payload: Any, dimension: int | None) -> Header:
    """Read the header; without an expectation, refuse one that asks for gigabytes."""
    header = read_header(payload, dimension=dimension)
    if dimension is None and header.dimension > TRUSTED_DIMENSION:
        raise WireFormatError(
            f"dimension={header.dimension} of the payload exceeds {TRUSTED_DIMENSION}; "
            "pass dimension= to decode to accept it"
        )
    return header


def _raw_values(header: Header) -> Float32:
    if len(header.body) != 4 * header.dimension:
        raise WireFormatError(
            f"a raw body of {len(header.body)} bytes does not hold dimension={header.dimension} float32"
        )
    values = np.frombuffer(header.body, "<f4").astype(np.float32)
    if not np.isfinite(values).all():
        raise WireFormatError("a raw payload holds NaN or infinity; it is corrupt")
    return values


def _nonzeros(header: Header) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int16]]:
    """Return positions and levels of the non-zeros."""
    count, at = read_varint(header.body, 0, "the number of non-zeros", header.dimension)
    width = header.bucket_width
    return gap_code.decode_nonzeros(header.body[at:], header.dimension, header.levels, width, count)
