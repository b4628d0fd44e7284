"""Payload sizes without encoding, from levels that stay on their device.

The gap code's length is computed there, exact to a byte a message. Of a part with more non-zeros than
``EXACT`` that is done for every k-th message; the others are scaled from block statistics: a block of n
coordinates with k non-zeros holds log2 C(n, k) bits for their places, k for their signs and, if their
magnitudes beyond one are geometric of mean m, k ((1 + m) log2(1 + m) - m log2 m) for those.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from fedpaq import codec
from fedpaq.codec import gap_code
from fedpaq.codec.estimate import stream_bytes
from fedpaq.codec.frame import pack_varint
from fedpaq.codec.wire import suits_blocks
from fedpaq.quantizers import LowPrecision, RawMessage
from fedpaq.uplink.gap_length import gap_bits, magnitude_bits

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
EXACT = 2**22  # non-zeros of a part whose code length is computed: about a gigabyte of working memory


def raw_bytes(dimension: int) -> int:
    """Return the length of a float32 payload."""
    return len(codec.encode(RawMessage(np.zeros(dimension, np.float32))))


def estimated_bytes(batch: Any, dimension: int, quantizer: LowPrecision, block: int) -> Float64:
    """Return the payload bytes (jobs,) of a batch of messages on a device (``cuda.low_precision``)."""
    nonzeros, magnitudes = batch.nonzeros.cpu().numpy(), batch.magnitudes.cpu().numpy()  # (jobs, blocks)
    counts = nonzeros.sum(axis=1, dtype=np.int64)
    every = max(1, -(-int(counts.sum()) // EXACT))
    exact = exact_bytes(batch.signed_levels[::every, :dimension], counts[::every], dimension, quantizer)
    if every == 1:
        return exact
    empty = codec.estimate_payload_bytes([0, 0], [], [], **_shape(dimension, quantizer))[0]
    guesses = block_bits(nonzeros, magnitudes, dimension, block) / 8
    ratio = (exact - empty).sum() / max(guesses[::every].sum(), 1.0)
    sizes: Float64 = empty + ratio * guesses
    sizes[::every] = exact
    return sizes


def exact_bytes(signed: Tensor, counts: Int64, dimension: int, quantizer: LowPrecision) -> Float64:
    """Return the payload bytes (jobs,) of signed levels (jobs, p) with ``counts`` non-zeros each."""
    in_blocks = suits_blocks(counts, dimension)
    sizes = np.empty(len(counts))
    for job in np.flatnonzero(in_blocks):  # so large that one by one is no loss
        row = signed[job].cpu().numpy()
        at = np.flatnonzero(row)
        ends = [0, len(at)]
        sizes[job] = codec.estimate_payload_bytes(ends, at, row[at], **_shape(dimension, quantizer))[0]
    if not in_blocks.all():
        rest = np.flatnonzero(~in_blocks)
        part = signed if len(rest) == len(counts) else signed[rest.tolist()]
        sizes[rest] = _gap_bytes(part, counts[rest], dimension, quantizer)
    return sizes


def _gap_bytes(signed: Tensor, counts: Int64, dimension: int, quantizer: LowPrecision) -> Float64:
    at = signed.nonzero()
    owners, positions = at[:, 0].contiguous(), at[:, 1].contiguous()
    values = signed[owners, positions].long()
    per_message = owners.bincount(minlength=len(counts))
    bits = gap_bits(owners, positions, values, per_message, dimension)
    if quantizer.levels > 1:
        guess = gap_code.expected_excess(quantizer.levels, quantizer.bucket_size or dimension)
        bits = bits + magnitude_bits(owners, values, per_message, guess)
    empty = codec.estimate_payload_bytes([0, 0], [], [], **_shape(dimension, quantizer))[0] - 1
    prefix = np.array([len(pack_varint(int(count))) for count in counts])
    return np.asarray(empty + prefix + stream_bytes(bits.cpu().numpy()))


def block_bits(
    nonzeros: npt.NDArray[np.int32], magnitudes: npt.NDArray[np.int32], dimension: int, block: int
) -> Float64:
    """Return about the bits of each message's body from its blocks: (jobs, blocks) to (jobs,)."""
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log2(np.arange(1, block + 1)))])
    sizes = np.full(nonzeros.shape[1], block)
    sizes[-1] = dimension - block * (sizes.size - 1)
    places = log_factorial[sizes] - log_factorial[nonzeros] - log_factorial[sizes - nonzeros]
    found = nonzeros.astype(np.float64)
    excess = np.divide(magnitudes - found, found, out=np.zeros_like(found), where=found > 0)
    bits = places + found * (1.0 + _times_log2(1.0 + excess) - _times_log2(excess))
    return np.asarray(bits.sum(axis=1))


def _times_log2(x: Float64) -> Float64:
    return x * np.log2(np.where(x > 0, x, 1.0))


def _shape(dimension: int, quantizer: LowPrecision) -> dict[str, Any]:
    return {"dimension": dimension, "levels": quantizer.levels, "bucket_size": quantizer.bucket_size}
