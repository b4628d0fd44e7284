"""Payload sizes without encoding: what a payload holds, counted from block statistics.

A block of n coordinates with k non-zeros needs log2 C(n, k) bits for their places, k for their signs,
and, if their magnitudes beyond one are geometric of mean m, k ((1 + m) log2(1 + m) - m log2 m) for those.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedpaq import codec
from fedpaq.quantizers import LowPrecision, QuantizedMessage, RawMessage
from fedpaq.quantizers.message import level_dtype, num_buckets

Int32 = npt.NDArray[np.int32]
Float64 = npt.NDArray[np.float64]


def raw_bytes(dimension: int) -> int:
    """Return the length of a float32 payload."""
    return len(codec.encode(RawMessage(np.zeros(dimension, np.float32))))


def empty_bytes(dimension: int, quantizer: LowPrecision) -> int:
    """Return the length of a payload without non-zeros: header, norms, checksum."""
    signed = np.zeros(dimension, level_dtype(quantizer.levels))
    norms = np.zeros(num_buckets(dimension, quantizer.bucket_size), np.float32)
    return len(codec.encode(QuantizedMessage(signed, norms, quantizer.levels, quantizer.bucket_size)))


def estimated_bytes(
    nonzeros: Int32, magnitudes: Int32, dimension: int, quantizer: LowPrecision, block: int
) -> Float64:
    """Return the expected payload bytes of each message from its blocks: (jobs, blocks) to (jobs,)."""
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log2(np.arange(1, block + 1)))])
    sizes = np.full(nonzeros.shape[1], block)
    sizes[-1] = dimension - block * (sizes.size - 1)
    places = log_factorial[sizes] - log_factorial[nonzeros] - log_factorial[sizes - nonzeros]
    found = nonzeros.astype(np.float64)
    excess = np.divide(magnitudes - found, found, out=np.zeros_like(found), where=found > 0)
    bits = places + found * (1.0 + _times_log2(1.0 + excess) - _times_log2(excess))
    return np.asarray(bits.sum(axis=1) / 8.0 + empty_bytes(dimension, quantizer))


def _times_log2(x: Float64) -> Float64:
    return x * np.log2(np.where(x > 0, x, 1.0))
