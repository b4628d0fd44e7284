"""The code of signed levels: norms, then the levels, by gaps where they are sparse and by blocks elsewhere.

content = levels | bucket_size | norms | body
           varint |   varint   | 4 each|
"""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedpaq.arrays import AnyArray, Bools, Float64, Int16, Int64
from fedpaq.codec import block_code, gap_code
from fedpaq.codec.accounting import message_bits, order0_entropy
from fedpaq.codec.frame import BLOCK, GAP, Code, Header, pack_varint, read_varint, varint_bytes
from fedpaq.errors import ConfigError, WireFormatError
from fedpaq.quantizers.message import (
    MAX_BUCKET_SIZE,
    MAX_LEVELS,
    QuantizedBatch,
    QuantizedMessage,
    level_dtype,
    num_buckets,
)

# The gap code is hardly ever longer, but above this many non-zeros, one coordinate in eight or denser,
# the block code is ten times faster.
BLOCK_NONZEROS = 2**18
BLOCK_SPARSITY = 8
Packed = list[tuple[int, bytes]]


def pack(messages: Sequence[QuantizedMessage]) -> Packed:
    """Return the content of each message; alike ones share a compiled call."""
    if isinstance(messages, QuantizedBatch):
        return _pack_batch(messages)
    alike = (list(group) for _, group in itertools.groupby(messages, _kind))
    return [each for group in alike for each in _pack_batch(QuantizedBatch.stack(group))]


def measure(messages: Sequence[QuantizedMessage]) -> Int64:
    """Return the bytes of each content that ``pack`` makes; those of sparse messages need not be made."""
    batch = _checked(messages) if isinstance(messages, QuantizedBatch) and len(messages) else None
    if batch is None or suits_blocks(batch.counts, batch.dimension).any():
        return np.array([len(content) for _, content in pack(messages)], np.int64)
    streams = gap_code.measure_nonzeros(*_known(batch))
    return front_bytes(batch.dimension, batch.levels, batch.bucket_size) + varint_bytes(batch.counts) + streams


def front_bytes(dimension: int, levels: int, bucket_size: int | None) -> int:
    """Return the bytes of a content before its body: fields and norms."""
    return len(pack_fields(levels, bucket_size)) + 4 * num_buckets(dimension, bucket_size)


def pack_fields(levels: int, bucket_size: int | None) -> bytes:
    """Return the bytes before the norms."""
    return pack_varint(levels) + pack_varint(bucket_size or 0)


def read(header: Header) -> Header:
    """Return the header with levels, bucket size and norms taken out of its body, by arithmetic alone."""
    body = header.body
    levels, at = read_varint(body, 0, "levels", MAX_LEVELS)
    if levels == 0:
        raise WireFormatError(f"levels=0 of the payload is out of range; allowed: 1..{MAX_LEVELS}")
    width, at = read_varint(body, at, "bucket_size", MAX_BUCKET_SIZE)
    count = num_buckets(header.dimension, width or None)
    stop = at + 4 * count
    if stop > len(body):
        raise WireFormatError(f"the payload ends before its {count} norms; it is truncated")
    norms = np.frombuffer(body[at:stop], "<f4").astype(np.float32)
    if not np.isfinite(norms).all() or np.signbit(norms).any():
        raise WireFormatError("a norm of the payload is negative, infinite or NaN; it is corrupt")
    front = header.version, header.code, header.code_name, header.dimension, header.payload_bytes
    return Header(*front, body[stop:], levels, width or None, norms, header.key)


def unpack(header: Header) -> QuantizedMessage:
    """Return the message of a frame whose header was ``read``."""
    if header.code == BLOCK:
        signed = block_code.decode(header.body, header.dimension, header.levels)
    else:
        positions, values = _nonzeros(header)
        signed = np.zeros(header.dimension, level_dtype(header.levels))
        signed[positions] = values
    return QuantizedMessage(signed, header.norms, header.levels, header.bucket_size)


def add(header: Header, total: Float64, weight: float) -> None:
    """Add weight * (the frame's message) to ``total``, touching only its non-zeros."""
    if header.code == BLOCK:
        unpack(header).add_to(total, weight)
        return
    positions, values = _nonzeros(header)
    units = header.norms.astype(np.float64) / header.levels * weight
    unit = units[0] if header.bucket_size is None else units[positions // header.bucket_size]
    total[positions] += values * unit


def describe(header: Header, message: QuantizedMessage) -> dict[str, Any]:
    """Return what there is to see in a message of levels."""
    levels = message.signed_levels
    nonzeros, entropy = int((levels != 0).sum()), order0_entropy(levels)
    fixed_width = message_bits(message.dimension, message.levels, bucket_size=message.bucket_size)
    return {
        "levels": message.levels,
        "bucket_size": message.bucket_size,
        "norms": len(message.norms),
        "largest_norm": float(message.norms.max()),
        "nonzeros": nonzeros,
        "density": nonzeros / message.dimension,
        "largest_level": int(abs(levels.astype(int)).max()),
        "entropy_bytes": entropy / 8,
        "payload_over_entropy": 8 * header.payload_bytes / entropy if entropy else None,
        "fixed_width_bytes": fixed_width / 8,
    }


def suits_blocks(counts: Int64, dimension: int) -> Bools:
    """Return which numbers of non-zeros call for the block code."""
    return (counts >= BLOCK_NONZEROS) & (BLOCK_SPARSITY * counts >= dimension)


def _kind(message: QuantizedMessage) -> tuple[Any, ...]:
    """Return what messages of one compiled call share; large ones would be copied for no gain and stay alone."""
    rows, alone = message.signed_levels, id(message) if message.dimension > 2**20 else None
    return rows.shape, rows.dtype, np.shape(message.norms), message.levels, message.bucket_size, alone


def _pack_batch(batch: QuantizedBatch) -> Packed:
    if not len(batch):
        return []
    batch = _checked(batch)
    in_blocks = suits_blocks(batch.counts, batch.dimension)
    if not in_blocks.any():
        return _contents(GAP, batch, _gap_bodies(batch))
    for_blocks, for_gaps = batch[np.flatnonzero(in_blocks)], batch[np.flatnonzero(~in_blocks)]
    _refuse_beyond(batch.levels, for_blocks.signed_levels)
    bodies = [block_code.encode(row, batch.levels) for row in for_blocks.signed_levels]
    blocks = iter(_contents(BLOCK, for_blocks, bodies))
    gaps = iter(_contents(GAP, for_gaps, _gap_bodies(for_gaps)))
    return [next(blocks if in_block else gaps) for in_block in in_blocks]


def _contents(code: int, batch: QuantizedBatch, bodies: list[bytes]) -> Packed:
    front = pack_fields(batch.levels, batch.bucket_size)
    return [(code, b"".join((front, norms.tobytes(), body))) for norms, body in zip(batch.norms, bodies, strict=True)]


def _gap_bodies(batch: QuantizedBatch) -> list[bytes]:
    if not len(batch):
        return []
    streams = gap_code.encode_nonzeros(*_known(batch))
    return [pack_varint(count) + stream for count, stream in zip(batch.counts.tolist(), streams, strict=True)]


def _known(batch: QuantizedBatch) -> tuple[Int64, Int64, AnyArray, int, int, int]:
    """Return what the gap code makes a batch's streams of."""
    found = batch.nonzeros
    if found is not batch.known_nonzeros:  # a quantizer knows its levels
        _refuse_beyond(batch.levels, found.values)
    width = batch.bucket_size or batch.dimension
    return found.ends, found.positions, found.values, batch.dimension, batch.levels, width


def _checked(batch: QuantizedBatch) -> QuantizedBatch:
    """Return the batch in the types the coders take, or raise ConfigError."""
    batch.require_whole()
    rows, levels = batch.signed_levels, batch.levels
    norms = batch.norms.astype("<f4", copy=False)
    if not np.isfinite(norms).all() or np.signbit(norms).any():
        raise ConfigError(f"message.norms is not {norms.shape[1]} finite, non-negative numbers")
    if rows.dtype == level_dtype(levels) and norms is batch.norms:
        return batch
    _refuse_beyond(levels, rows)  # before it is made to fit
    return QuantizedBatch(rows.astype(level_dtype(levels)), norms, levels, batch.bucket_size)


def _refuse_beyond(levels: int, signed: AnyArray) -> None:
    if signed.size and (signed.max() > levels or signed.min() < -levels):
        raise ConfigError(f"message.signed_levels exceeds levels={levels}; allowed: -{levels}..{levels}")


def _nonzeros(header: Header) -> tuple[Int64, Int16]:
    """Return positions and levels of the non-zeros."""
    count, at = read_varint(header.body, 0, "the number of non-zeros", header.dimension)
    width = header.bucket_width
    return gap_code.decode_nonzeros(header.body[at:], header.dimension, header.levels, width, count)


CODE = Code(
    names={GAP: "gap", BLOCK: "block"}, pack=pack, unpack=unpack, read=read, add=add, describe=describe, measure=measure
)
