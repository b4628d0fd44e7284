"""Payload sizes of messages whose levels are on a device.

Only the non-zeros travel to the host, where the encoder says what they take. Of a part with more non-zeros than
``EXACT`` that is done for every k-th message; the others are scaled from block statistics: a block of n
coordinates with k non-zeros holds log2 C(n, k) bits for their places, k for their signs and, if their
magnitudes beyond one are geometric of mean m, k ((1 + m) log2(1 + m) - m log2 m) for those.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpaq.arrays import Float64, Int64
from fedpaq.codec import block_code, gap_code
from fedpaq.codec.frame import frame_bytes, pack_varint, varint_bytes
from fedpaq.codec.level_code import front_bytes, suits_blocks
from fedpaq.quantizers import LowPrecision

EXACT = 2**19  # non-zeros of a part that are looked at one by one: thousands of messages at one level


def estimated_bytes(batch: Any, dimension: int, quantizer: LowPrecision, block: int) -> Float64:
    """Return the payload bytes (jobs,) of a batch of messages on a device (``cuda.low_precision``)."""
    counts = batch.nonzeros.sum(1).cpu().numpy()
    every = max(1, -(-int(counts.sum()) // EXACT))
    exact = exact_bytes(batch.signed_levels[::every], counts[::every], dimension, quantizer)
    if every == 1:
        return exact
    empty = _front_bytes(dimension, quantizer) + len(pack_varint(0))
    guesses = block_bits(batch.nonzeros, batch.magnitudes, dimension, block).cpu().numpy() / 8
    ratio = (exact - empty).sum() / max(guesses[::every].sum(), 1.0)
    sizes: Float64 = empty + ratio * guesses
    sizes[::every] = exact
    return sizes


def exact_bytes(signed: Tensor, counts: Int64, dimension: int, quantizer: LowPrecision) -> Float64:
    """Return the payload bytes (jobs,) of signed levels (jobs, p or more) with ``counts`` non-zeros each."""
    in_blocks = suits_blocks(counts, dimension)
    bodies = np.empty(len(counts))
    for job in np.flatnonzero(in_blocks):  # so large that one by one is no loss
        bodies[job] = len(block_code.encode(signed[job, :dimension].cpu().numpy(), quantizer.levels))
    if not in_blocks.all():
        rest = np.flatnonzero(~in_blocks)
        part = signed if len(rest) == len(counts) else signed[rest.tolist()]
        bodies[rest] = varint_bytes(counts[rest]) + stream_bytes(part, counts[rest], dimension, quantizer)
    return _front_bytes(dimension, quantizer) + bodies


def stream_bytes(signed: Tensor, counts: Int64, dimension: int, quantizer: LowPrecision) -> Float64:
    """Return the bytes (jobs,) of each message's stream of non-zeros, by encoding them on the host."""
    flat = signed.reshape(-1)
    at = flat.nonzero()[:, 0]
    starts = np.repeat(np.arange(len(counts)) * signed.shape[1], counts)
    ends = np.concatenate([[0], np.cumsum(counts)])
    values = flat[at].cpu().numpy().astype(np.int16)
    width = quantizer.bucket_size or dimension
    positions = at.cpu().numpy() - starts
    return gap_code.measure_nonzeros(ends, positions, values, dimension, quantizer.levels, width).astype(np.float64)


def block_bits(nonzeros: Tensor, magnitudes: Tensor, dimension: int, block: int) -> Tensor:
    """Return about the bits of each message's body from its blocks: (jobs, blocks) to (jobs,)."""
    sizes = torch.full_like(nonzeros[:1], block, dtype=torch.float64)
    sizes[:, -1] = dimension - block * (nonzeros.shape[1] - 1)
    found = nonzeros.double()
    places = torch.lgamma(sizes + 1) - torch.lgamma(found + 1) - torch.lgamma(sizes - found + 1)
    excess = (magnitudes - found) / found.clamp(min=1)
    magnitude = torch.xlogy(1 + excess, 1 + excess) - torch.xlogy(excess, excess)
    return ((places + found * magnitude) / math.log(2) + found).sum(1)


def _front_bytes(dimension: int, quantizer: LowPrecision) -> int:
    """Return the payload bytes around a body: header, fields, norms, CRC."""
    return frame_bytes(dimension) + front_bytes(dimension, quantizer.levels, quantizer.bucket_size)
