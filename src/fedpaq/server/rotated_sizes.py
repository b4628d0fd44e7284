"""Payload sizes of rotated messages whose levels are on a device.

For each cut, the non-zeros of some messages, evenly chosen, travel to the host, where the encoder says what
they take; the others are scaled from the same block statistics as in ``payload_sizes``. Messages of one
quantizer are nearly of one length, so a few dozen say enough. What travels is fetched before it is encoded, so
that the device need not wait.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedpaq import codec
from fedpaq.arrays import Float64, Int16, Int64
from fedpaq.codec import block_code, gap_code
from fedpaq.codec.frame import frame_bytes, pack_varint
from fedpaq.quantizers import Message
from fedpaq.quantizers.rotated import steps
from fedpaq.quantizers.rotated.content import suits_blocks
from fedpaq.quantizers.rotated.message import scale_index, zero_message
from fedpaq.quantizers.rotated.rotation import Blocks
from fedpaq.randomness import Key
from fedpaq.server.payload_sizes import block_bits

EXACT = 2**16  # non-zeros of a cut that are looked at one by one
SAMPLED = 64  # messages of a cut that are, at most
SIDES = 8  # messages of a cut whose scales are encoded; the others take their mean


@dataclass(frozen=True, eq=False)
class Sample:
    """Some messages of a cut, and about the bytes of every body."""

    blocks: Blocks
    jobs: Int64  # all of this cut
    guesses: Float64  # of all of them
    sampled: Int64  # their numbers among all
    counts: Int64  # non-zeros of each message sampled
    largest: Int64
    scales: Float64  # (messages, blocks)
    mantissa_bits: Int64
    positions: Int64  # of the non-zeros of all messages sampled, joined
    values: Int16


def take_samples(groups: Sequence[Any]) -> list[Sample]:
    """Fetch a sample of each cut from ``rotated_batch.Group``s."""
    by_cut: dict[int, list[Any]] = {}
    for group in groups:
        by_cut.setdefault(group.blocks.count, []).append(group)
    return [take_sample(alike) for alike in by_cut.values()]


def take_sample(groups: Sequence[Any]) -> Sample:
    """Fetch messages of the largest of some groups that are cut alike."""
    blocks, lengths = groups[0].blocks, [len(group.jobs) for group in groups]
    number = int(np.argmax(lengths))
    group, total = groups[number], sum(lengths)
    expected = np.where(group.wanted < 0, blocks.size, group.wanted).sum() / len(group.jobs)
    some = min(max(int(EXACT / max(expected, 1.0)), 1), SAMPLED)
    every = slice(None, None, -(-len(group.jobs) // some))
    rounded = group.rounded
    guesses = [block_bits(one.rounded.counts, one.rounded.magnitudes, blocks.padded, blocks.size) for one in groups]
    statistics = (rounded.counts[every].sum(1), rounded.largest[every].amax(1), group.scales[every].reshape(-1))
    found = torch.cat([part.double() for part in (*guesses, *statistics)]).cpu().numpy()
    signed = rounded.levels[every]
    count = len(signed)
    signed = signed.reshape(count, -1)
    at = signed.nonzero()
    nonzeros = torch.stack([at[:, 1], signed[at[:, 0], at[:, 1]].long()]).cpu().numpy()
    counts, largest, scales = np.split(found[total:], [count, 2 * count])
    return Sample(
        blocks, np.concatenate([one.jobs for one in groups]), found[:total] / 8,
        sum(lengths[:number]) + np.arange(len(group.jobs))[every], counts.astype(np.int64),
        largest.astype(np.int64), scales.reshape(count, -1), group.mantissa_bits[every],
        nonzeros[0], nonzeros[1].astype(np.int16),
    )  # fmt: skip


def payload_bytes(samples: Sequence[Sample], on_host: Mapping[int, Message], dimension: int, jobs: int) -> Float64:
    """Return the payload bytes (jobs,); jobs of no sample are on the host or zeros."""
    nothing = zero_message(Blocks(dimension, 1), Key(seed=0))
    sizes: Float64 = np.full(jobs, float(len(codec.encode(nothing))))
    for job, message in on_host.items():
        sizes[job] = len(codec.encode(message))
    for sample in samples:
        sizes[sample.jobs] = cut_bytes(sample)
    return sizes


def cut_bytes(sample: Sample) -> Float64:
    """Return the payload bytes of all messages of a cut."""
    exact, around = exact_bytes(sample), fixed_bytes(sample.blocks)
    ratio = (exact - around).sum() / max(sample.guesses[sample.sampled].sum(), 1.0)
    sizes: Float64 = around + ratio * sample.guesses
    sizes[sample.sampled] = exact
    return sizes


def fixed_bytes(blocks: Blocks) -> int:
    """Return the bytes of frame, dimension and number of blocks."""
    return frame_bytes(blocks.dimension) + len(pack_varint(blocks.count))


def exact_bytes(sample: Sample) -> Float64:
    """Return the payload bytes of the messages sampled."""
    blocks, bodies = sample.blocks, body_bytes(sample)
    sides, sizes = [], np.empty(len(bodies))
    for row, scales in enumerate(sample.scales):
        index = scale_index(scales[scales > 0], int(sample.mantissa_bits[row]))
        fields = int(sample.counts[row]), int(sample.largest[row]), int(index[0])
        if blocks.count > 1 and row < SIDES:
            side = len(steps.encode(index))
            sides.append(side + len(pack_varint(side)))
        side_bytes = 0.0 if blocks.count == 1 else sides[row] if row < SIDES else float(np.mean(sides))
        start = sum(len(pack_varint(field)) for field in fields) + 1
        sizes[row] = fixed_bytes(blocks) + start + side_bytes + bodies[row]
    return sizes


def body_bytes(sample: Sample) -> Float64:
    """Return the bytes of the bodies of the messages sampled, by encoding them."""
    padded, counts, largest = sample.blocks.padded, sample.counts, sample.largest
    ends = np.concatenate([[0], np.cumsum(counts)])
    bodies = np.empty(len(counts))
    in_blocks = np.array([suits_blocks(int(count), padded) for count in counts])
    for row in np.flatnonzero(in_blocks):
        part = slice(ends[row], ends[row + 1])
        levels = np.zeros(padded, np.int16)
        levels[sample.positions[part]] = sample.values[part]
        bodies[row] = len(block_code.encode(levels, int(largest[row])))
    for most in np.unique(largest[~in_blocks]):  # one compiled call for messages of the same levels
        rows = np.flatnonzero(~in_blocks & (largest == most))
        parts = np.concatenate([np.arange(ends[row], ends[row + 1]) for row in rows])
        bodies[rows] = gap_code.measure_nonzeros(
            np.concatenate([[0], np.cumsum(counts[rows])]), sample.positions[parts], sample.values[parts],
            padded, int(most), padded,
        )  # fmt: skip
    return bodies
