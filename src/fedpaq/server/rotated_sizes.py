"""Payload sizes of rotated messages whose levels are on a device.

For each cut, the non-zeros of some messages travel to the host, where the encoder says what they take; the
others are scaled from the same block statistics as in ``payload_sizes``. Messages of one quantizer are nearly
of one length, so a few hundred say enough.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedpaq import codec
from fedpaq.codec import block_code, gap_code
from fedpaq.codec.frame import pack_varint
from fedpaq.quantizers import Message
from fedpaq.quantizers.rotated.allocation import FRAME_BYTES
from fedpaq.quantizers.rotated.content import encode_steps, suits_blocks
from fedpaq.quantizers.rotated.message import scale_index, zero_message
from fedpaq.quantizers.rotated.rotation import Blocks
from fedpaq.randomness import Key
from fedpaq.server.payload_sizes import block_bits

Float64 = npt.NDArray[np.float64]
EXACT = 2**16  # non-zeros of a cut that are looked at one by one
SIDES = 8  # messages of a cut whose scales are encoded; the others take their mean


def payload_bytes(groups: Sequence[Any], on_host: Mapping[int, Message], dimension: int, jobs: int) -> Float64:
    """Return the payload bytes (jobs,) of ``rotated_batch.Group``s; jobs in none are on the host or zeros."""
    nothing = zero_message(Blocks(dimension, 1), Key(seed=0))
    sizes: Float64 = np.full(jobs, float(len(codec.encode(nothing))))
    for job, message in on_host.items():
        sizes[job] = len(codec.encode(message))
    by_cut: dict[int, list[Any]] = {}
    for group in groups:
        by_cut.setdefault(group.blocks.count, []).append(group)
    for alike in by_cut.values():
        numbers = np.concatenate([group.jobs for group in alike])
        sizes[numbers] = cut_bytes(alike)
    return sizes


def cut_bytes(groups: Sequence[Any]) -> Float64:
    """Return the payload bytes of groups that are cut alike, joined."""
    blocks = groups[0].blocks
    guesses = (
        torch.cat(
            [
                block_bits(group.rounded.counts, group.rounded.magnitudes, blocks.padded, blocks.size)
                for group in groups
            ]
        ).cpu().numpy() / 8
    )  # fmt: skip
    exact: list[Float64] = []
    left = EXACT
    for group in groups:
        counts = group.rounded.counts.sum(1).cpu().numpy().astype(np.int64)
        some = int(np.searchsorted(np.cumsum(counts), left, side="right"))
        some = max(some, 1 if not exact else 0)
        if some:
            exact.append(exact_bytes(group, counts[:some]))
        left -= int(counts[:some].sum())
        if some < len(counts):
            break
    known = np.concatenate(exact)
    around = fixed_bytes(blocks)
    ratio = (known - around).sum() / max(guesses[: len(known)].sum(), 1.0)
    sizes: Float64 = around + ratio * guesses
    sizes[: len(known)] = known
    return sizes


def fixed_bytes(blocks: Blocks) -> int:
    """Return the bytes of frame, dimension and number of blocks."""
    return FRAME_BYTES + -(-blocks.dimension.bit_length() // 7) + len(pack_varint(blocks.count))


def exact_bytes(group: Any, counts: npt.NDArray[np.int64]) -> Float64:
    """Return the payload bytes of the first messages of a group, which have so many non-zeros each."""
    blocks, some = group.blocks, len(counts)
    signed = group.rounded.levels[:some].reshape(some, -1)
    largest = group.rounded.largest[:some].amax(1).cpu().numpy()
    scales = group.scales[:some].cpu().numpy()
    bodies = body_bytes(signed, counts, largest)
    sides, sizes = [], np.empty(some)
    for row in range(some):
        mantissa_bits = int(group.rounding.mantissa_bits[row])
        index = scale_index(scales[row][scales[row] > 0], mantissa_bits)
        start = len(pack_varint(int(counts[row])) + pack_varint(int(largest[row])) + pack_varint(int(index[0])))
        if blocks.count > 1 and row < SIDES:
            side = len(encode_steps(np.diff(index)))
            sides.append(side + len(pack_varint(side)))
        side_bytes = 0.0 if blocks.count == 1 else sides[row] if row < SIDES else float(np.mean(sides))
        sizes[row] = fixed_bytes(blocks) + start + 1 + side_bytes + bodies[row]
    return sizes


def body_bytes(signed: torch.Tensor, counts: npt.NDArray[np.int64], largest: npt.NDArray[np.int32]) -> Float64:
    """Return the bytes of the bodies of levels (messages, padded), by encoding them on the host."""
    padded = signed.shape[1]
    bodies = np.empty(len(counts))
    in_blocks = np.array([suits_blocks(int(count), padded) for count in counts])
    for row in np.flatnonzero(in_blocks):
        bodies[row] = len(block_code.encode(signed[int(row)].cpu().numpy().astype(np.int16), int(largest[row])))
    for most in np.unique(largest[~in_blocks]):  # one compiled call for messages of the same levels
        rows = np.flatnonzero(~in_blocks & (largest == most))
        part = signed if len(rows) == len(counts) else signed[rows.tolist()]
        at = part.nonzero()
        values = part[at[:, 0], at[:, 1]].cpu().numpy().astype(np.int16)
        ends = np.concatenate([[0], np.cumsum(counts[rows])])
        streams = gap_code.encode_nonzeros(ends, at[:, 1].cpu().numpy(), values, padded, int(most), padded)
        bodies[rows] = [len(stream) for stream in streams]
    return bodies
