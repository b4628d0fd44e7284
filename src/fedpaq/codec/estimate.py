"""Estimate: the bytes of a payload from a message's non-zeros, without encoding and with NumPy alone.

For simulations whose levels live elsewhere (on a GPU): only the non-zeros travel. The figure is the mean
over where the coder's last byte happens to end: exact to a byte for each message, and far below 0.5 %
on any payload over 200 bytes or any mean over messages.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedpaq.codec import gap_code
from fedpaq.codec.adaptive_integers import TABLE_SIZE
from fedpaq.codec.block_code import BLOCK_SIZE, LANE_SIZE, LANES, num_blocks
from fedpaq.codec.code_length import Decisions, Float64, Int64, bit_length, integer_decisions, total_bits
from fedpaq.codec.frame import CRC_BYTES, GAP, pack_header, pack_varint
from fedpaq.codec.frequencies import (
    CLASSES,
    CONTEXTS,
    SIDE_WINDOW,
    STRIDE,
    normalise,
    side_states,
)
from fedpaq.codec.tokens import extra_bits, token_of, token_table
from fedpaq.codec.wire import suits_blocks
from fedpaq.errors import ConfigError
from fedpaq.quantizers.message import num_buckets


def estimate_payload_bytes(
    ends: npt.ArrayLike,
    positions: npt.ArrayLike,
    values: npt.ArrayLike,
    *,
    dimension: int,
    levels: int,
    bucket_size: int | None = None,
) -> Float64:
    """Return the payload bytes (r,) of r messages; message j has its non-zeros at ends[j] : ends[j + 1].

    >>> estimate_payload_bytes([0, 1], [2], [-1], dimension=3, levels=1).round()
    array([16.])
    """
    ends, positions, values = (np.asarray(a).astype(np.int64) for a in (ends, positions, values))
    matched = len(positions) == len(values) and len(ends) >= 1 and ends[0] == 0 and ends[-1] == len(positions)
    if not matched or (np.diff(ends) < 0).any():
        raise ConfigError("ends, positions and values do not match; message j lies at ends[j] : ends[j + 1]")
    frame = len(pack_header(GAP, dimension, levels, bucket_size)) + CRC_BYTES
    frame += 4 * num_buckets(dimension, bucket_size)
    counts = np.diff(ends)
    in_blocks = suits_blocks(counts, dimension)
    bodies = np.empty(len(counts))
    for job in np.flatnonzero(in_blocks):
        part = slice(ends[job], ends[job + 1])
        bodies[job] = _block_body_bytes(positions[part], values[part], dimension, levels)
    rest = np.repeat(~in_blocks, counts)
    bodies[~in_blocks] = _gap_body_bytes(
        counts[~in_blocks], positions[rest], values[rest], dimension, levels, bucket_size or dimension
    )
    return frame + bodies


def stream_bytes(bits: Float64) -> Float64:
    """Return the mean length of a range-coded stream: a number in an interval of size 2^-bits.

    ceil(bits / 8) bytes always reach one; a byte less does with the probability subtracted here.
    """
    whole = np.ceil(bits / 8)
    return np.asarray(np.where(bits > 0, whole - np.exp2(8 * (whole - 1) - bits), 0.0))


def _gap_body_bytes(
    counts: Int64, positions: Int64, values: Int64, dimension: int, levels: int, width: int
) -> Float64:
    owners = np.repeat(np.arange(len(counts)), counts)
    index = np.arange(len(positions)) - (np.cumsum(counts) - counts)[owners]  # t of each non-zero
    before = np.where(index > 0, np.roll(positions, 1), -1)
    gaps = positions - before - 1
    means = _gap_means(index, positions, before, counts[owners] - index, dimension)
    decisions, raw = integer_decisions(owners, gap_code.GAPS_AT, means, gaps)
    decisions.append(_sign_decisions(owners, index, gaps, values))
    if levels > 1:
        guess = gap_code.expected_excess(levels, width)
        excesses = np.abs(values) - 1
        more, more_raw = integer_decisions(
            owners, gap_code.MAGNITUDES_AT, _excess_means(index, excesses, guess), excesses
        )
        decisions, raw = decisions + more, raw + more_raw
    bits = total_bits(decisions, gap_code.initial_states(), len(counts))
    bits += np.bincount(owners, weights=raw, minlength=len(counts))
    prefix = np.array([len(pack_varint(int(count))) for count in counts])
    return prefix + stream_bytes(bits)


def _gap_means(index: Int64, positions: Int64, before: Int64, left: Int64, dimension: int) -> Int64:
    """``gap_code.mean_gap`` of every non-zero."""
    seen = np.minimum(index, gap_code.GAP_WINDOW)
    oldest = np.where(index > seen, positions[np.arange(len(index)) - 1 - seen], -1)
    zeros = before - oldest - seen
    remaining = ((dimension - before - 1 - left) << 4) // (left + 1)
    means: Int64 = ((zeros << 4) + (2 * gap_code.GAP_WINDOW - seen) * remaining) >> 6
    return means


def _excess_means(index: Int64, excesses: Int64, guess: int) -> Int64:
    """The mean excess, in eighths, of the eight non-zeros before."""
    seen = np.minimum(index, gap_code.MAGNITUDE_WINDOW)
    sums = np.r_[0, np.cumsum(excesses)]
    at = np.arange(len(index))
    means: Int64 = sums[at] - sums[at - seen] + (gap_code.MAGNITUDE_WINDOW - seen) * guess
    return means


def _sign_decisions(owners: Int64, index: Int64, gaps: Int64, values: Int64) -> Decisions:
    signs = (values > 0).astype(np.int64)
    last = np.where(index > 0, np.roll(signs, 1), 0)
    last_but_one = np.where(index > 1, np.roll(signs, 2), 0)
    near = np.where(gaps == 0, 0, np.where(gaps < 3, 1, 2))
    return Decisions(owners, 4 * near + 2 * last + last_but_one, signs)


def _block_body_bytes(positions: Int64, values: Int64, dimension: int, levels: int) -> float:
    blocks = num_blocks(dimension)
    sums = np.bincount(positions // BLOCK_SIZE, weights=np.abs(values), minlength=blocks)
    classes = bit_length(sums.astype(np.int64))
    counts = _token_counts(positions, values, classes, dimension)
    frequencies = normalise(counts)
    bits = float((counts * (12 - np.log2(np.maximum(frequencies, 1)))).sum())
    extras = float(counts.sum(axis=(0, 1)) @ np.array([extra_bits(min(token, 118)) for token in range(STRIDE)]))
    side = _side_bytes(classes, frequencies, token_of(-levels) + 1)
    return len(pack_varint(int(side))) + side + 4 * LANES + (bits + extras) / 8


def _token_counts(positions: Int64, values: Int64, classes: Int64, dimension: int) -> Int64:
    """Return how often each token occurs in each table (CLASSES, CONTEXTS, STRIDE)."""
    counts = np.zeros((CLASSES, CONTEXTS, STRIDE), np.int64)
    contexts = np.where(values > 0, 1, 2)
    own_class = classes[positions // BLOCK_SIZE]
    follows = np.r_[False, positions[1:] == positions[:-1] + 1] & (positions % LANE_SIZE != 0)
    tokens = token_table()[values % 65536]
    np.add.at(counts, (own_class, np.where(follows, np.roll(contexts, 1), 0), tokens), 1)
    # A zero right after a non-zero, in the same lane:
    after = positions + 1
    zero_next = np.r_[positions[1:] != after[:-1], True] & (after % LANE_SIZE != 0) & (after < dimension)
    np.add.at(counts, (own_class[zero_next], contexts[zero_next], 0), 1)
    sizes = np.full(len(classes), BLOCK_SIZE)
    sizes[-1] = dimension - BLOCK_SIZE * (len(classes) - 1)
    in_class = np.bincount(classes, weights=sizes, minlength=CLASSES).astype(np.int64)
    counts[:, 0, 0] = in_class - counts.sum(axis=(1, 2))
    return counts


def _side_bytes(classes: Int64, frequencies: Int64, tokens: int) -> float:
    steps = np.diff(classes, prepend=0)
    codes = np.where(steps >= 0, 2 * steps, -2 * steps - 1)
    tables = frequencies[np.unique(classes), :, :tokens].reshape(-1)
    decisions: list[Decisions] = []
    raw_bits = 0.0
    for base, integers in ((0, codes), (TABLE_SIZE, tables)):
        sums = np.r_[np.zeros(SIDE_WINDOW, np.int64), np.cumsum(integers)]
        means = 2 * (sums[SIDE_WINDOW - 1 : -1] - np.r_[np.zeros(1, np.int64), sums][: len(integers)])
        owners = np.zeros(len(integers), np.int64)
        more, raw = integer_decisions(owners, base, means, integers)
        decisions, raw_bits = decisions + more, raw_bits + float(raw.sum())
    return float(stream_bytes(total_bits(decisions, side_states(), 1) + raw_bits)[0])
