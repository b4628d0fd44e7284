"""The low-precision quantizer and the sum of its messages on the GPU.

Twin: ``fedpaq.quantizers.low_precision``, equal to the bit. Three passes over r updates (r, p):

1. norms: one program per client and chunk of 65,536 coordinates, in the pinned order of the sum;
2. levels: one program per client and block of coordinates; Philox, scale, floor, one byte out; again for
   the few blocks where a level hangs on the low half of a draw;
3. sum: one program per block of coordinates, which walks over the clients in order. No atomics, so
   the order of additions is the CPU's.

They read the updates twice and the levels once: 10 bytes moved per coordinate, of which 8 are needed
by any method that must know the norm first. Products and sums are never fused into one rounding.
"""

# Triton types the kernels itself when it compiles them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedpaq.kernels.cuda.philox import stream_words

DITHER, DITHER_LOW = tl.constexpr(3), tl.constexpr(10)  # Purpose
CHUNK = 65_536  # coordinates per partial sum of squares
LANES = tl.constexpr(256)
UNROLL = tl.constexpr(8)  # rows of a chunk loaded before they are added
BLOCK_LANES = 128  # Philox blocks per program of the levels pass
BLOCK = 8 * BLOCK_LANES  # coordinates per program, and per entry of the statistics
SETTLED_BLOCKS = 16  # blocks per program that settles the few that need it
SUM_BLOCK = 256  # coordinates per program of the sum


@dataclass(frozen=True, eq=False)
class DeviceBatch:
    """The messages of several clients on the GPU, and how many non-zeros each block of them holds."""

    signed_levels: Tensor  # (r, p or more) int8 or int16
    norms: Tensor  # (r, buckets) float32
    units: Tensor  # (r, buckets) float64: norm / s, NaN where the norm is not finite
    nonzeros: Tensor  # (r, blocks) int32
    magnitudes: Tensor  # (r, blocks) int32: sum of |level|
    width: int  # coordinates per bucket


@triton.jit(do_not_specialize=["buckets", "chunks"])
def squares_kernel(updates, partial, stride, dimension, width, buckets, chunks, CHUNK: tl.constexpr):
    """Sum the squares of one chunk: 256 lanes run down it, then the lanes are halved."""
    pid = tl.program_id(0)
    chunk, rest = pid % chunks, pid // chunks
    bucket, job = rest % buckets, (rest // buckets).to(tl.int64)
    start = bucket * width + chunk * CHUNK
    stop = tl.minimum(tl.minimum(start + CHUNK, (bucket + 1) * width), dimension)
    row = updates + job * stride + start + tl.arange(0, LANES)
    whole = (stop - start) // (UNROLL * LANES)
    lanes = tl.zeros([LANES], tl.float64)
    for step in range(whole):
        for part in tl.static_range(UNROLL):
            value = tl.load(row + (step * UNROLL + part) * LANES).to(tl.float64)
            lanes += value * value
    for line in range(whole * UNROLL, tl.cdiv(stop - start, LANES)):
        inside = start + line * LANES + tl.arange(0, LANES) < stop
        value = tl.load(row + line * LANES, mask=inside, other=0.0).to(tl.float64)
        lanes += value * value
    for step in tl.static_range(7):
        lanes = tl.sum(tl.reshape(lanes, (2, 128 >> step)), axis=0)  # two terms: no order to fix
    tl.store(partial + pid, tl.sum(lanes, axis=0))


@triton.jit(do_not_specialize=["chunks", "levels"])
def norms_kernel(partial, norms, scales, units, count, chunks, levels, SIZE: tl.constexpr):
    """Add the chunks in order; norm as float32, then s / norm and norm / s in double precision."""
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = at < count
    total = tl.zeros([SIZE], tl.float64)
    for chunk in range(chunks):
        total += tl.load(partial + at.to(tl.int64) * chunks + chunk, mask=inside, other=0.0)
    norm = tl.sqrt(total).to(tl.float32)
    usable = (norm > 0.0) & (norm < float("inf"))
    exact, steps = tl.where(usable, norm, 1.0).to(tl.float64), levels.to(tl.float64)
    zero = tl.where(norm == 0.0, 0.0, float("nan")).to(tl.float64)
    tl.store(norms + at, norm, mask=inside)
    tl.store(scales + at, tl.where(usable, steps / exact, 0.0), mask=inside)
    tl.store(units + at, tl.where(usable, exact / steps, zero), mask=inside)


@triton.jit
def halves_of(word):
    """Return the half-words (2 SIZE,) of some words, low half first, as doubles."""
    return tl.interleave(word & 0xFFFF, word >> 16).to(tl.float64)


@triton.jit
def round_block(
    number, updates, scales, seeds, clients, signed, nonzeros, magnitudes,
    round, stride, signed_stride, dimension, width, buckets, levels, blocks,
    SIZE: tl.constexpr, ONE_BUCKET: tl.constexpr, WHOLE_DRAWS: tl.constexpr,
):  # fmt: skip
    """level = floor(|x| * s / norm + u) with the sign of x, for one block of one job.

    u is the draw, or its high half; tells whether a level is so close to the next that the low half decides.
    """
    block, job = number % blocks, (number // blocks).to(tl.int64)
    seed, client = tl.load(seeds + job), tl.load(clients + job)
    lanes = block * SIZE + tl.arange(0, SIZE)  # Philox blocks of eight half-words, two of a word in a row
    words = stream_words(lanes, DITHER, seed, round, client)
    if WHOLE_DRAWS:
        low_words = stream_words(lanes, DITHER_LOW, seed, round, client)
    pair = tl.arange(0, 2 * SIZE)
    first = block * (8 * SIZE) + pair // 128 * 512 + pair % 128  # the coordinates of word 0
    scale = tl.load(scales + job * buckets)
    found, size = tl.zeros([2 * SIZE], tl.int32), tl.zeros([2 * SIZE], tl.int32)
    close = tl.zeros([2 * SIZE], tl.int32)
    for w in tl.static_range(4):
        at = first + 128 * w
        inside = at < dimension
        value = tl.load(updates + job * stride + at, mask=inside, other=0.0)
        if not ONE_BUCKET:
            scale = tl.load(scales + job * buckets + at // width, mask=inside, other=0.0)
        if WHOLE_DRAWS:
            draw = halves_of(words[w]) + halves_of(low_words[w]) * 1.52587890625e-05  # 2^-16
        else:
            draw = halves_of(words[w])
        reached = (tl.abs(value).to(tl.float64) * (scale * 65536.0) + draw).to(tl.int32)  # in 2^-16 levels
        close |= ((reached & 0xFFFF) == 0xFFFF).to(tl.int32)
        level = tl.where(scale > 0.0, tl.minimum(reached >> 16, levels), 0)
        found += (level > 0).to(tl.int32)
        size += level
        level = tl.where(value < 0.0, -level, level)
        tl.store(signed + job * signed_stride + at, level.to(signed.dtype.element_ty))
    tl.store(nonzeros + number, tl.sum(found, axis=0))
    tl.store(magnitudes + number, tl.sum(size, axis=0))
    return tl.max(close, axis=0)


@triton.jit(do_not_specialize=["round", "levels", "buckets", "blocks"])
def levels_kernel(
    updates, scales, seeds, clients, signed, nonzeros, magnitudes, unsettled,
    round, stride, signed_stride, dimension, width, buckets, levels, blocks,
    SIZE: tl.constexpr, ONE_BUCKET: tl.constexpr,
):  # fmt: skip
    """Round one block by the high halves of its draws, and note whether that settles it."""
    number = tl.program_id(0)
    close = round_block(
        number, updates, scales, seeds, clients, signed, nonzeros, magnitudes,
        round, stride, signed_stride, dimension, width, buckets, levels, blocks, SIZE, ONE_BUCKET, False,
    )  # fmt: skip
    tl.store(unsettled + number, close)


@triton.jit(do_not_specialize=["round", "levels", "buckets", "blocks", "count"])
def settle_kernel(
    updates, scales, seeds, clients, signed, nonzeros, magnitudes, unsettled,
    round, stride, signed_stride, dimension, width, buckets, levels, blocks, count,
    SIZE: tl.constexpr, ONE_BUCKET: tl.constexpr, PER_PROGRAM: tl.constexpr,
):  # fmt: skip
    """Round again, by whole draws, those of some blocks that are unsettled: three in two hundred.

    A kernel of its own: in the first, the registers for what is rarely needed would slow down the rest.
    """
    start = tl.program_id(0) * PER_PROGRAM
    for number in range(start, tl.minimum(start + PER_PROGRAM, count)):
        if tl.load(unsettled + number) != 0:
            round_block(
                number, updates, scales, seeds, clients, signed, nonzeros, magnitudes,
                round, stride, signed_stride, dimension, width, buckets, levels, blocks, SIZE, ONE_BUCKET, True,
            )  # fmt: skip


@triton.jit(do_not_specialize=["buckets"])
def sum_kernel(
    rows, units, first_job, total, stride, dimension, width, buckets,
    SIZE: tl.constexpr, ONE_BUCKET: tl.constexpr, QUANTIZED: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """total[run, block] += row * unit, job after job; rows of levels reach beyond p, rows of floats do not."""
    run = tl.program_id(1)
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = at < dimension
    here = total + run.to(tl.int64) * dimension + at
    added = tl.load(here, mask=inside, other=0.0)
    start, stop = tl.load(first_job + run), tl.load(first_job + run + 1)
    bucket = tl.where(inside, at // width, 0)
    for job in tl.range(start, stop, loop_unroll_factor=UNROLL):
        if QUANTIZED:
            unit = tl.load(units + job * buckets) if ONE_BUCKET else tl.load(units + job * buckets + bucket)
            added += tl.load(rows + job * stride + at).to(tl.float64) * unit
        else:
            added += tl.load(rows + job * stride + at, mask=inside, other=0.0).to(tl.float64)
    tl.store(here, added, mask=inside)


def quantize(
    updates: Tensor, seeds: Tensor, round: int, clients: Tensor, levels: int, bucket_size: int | None
) -> DeviceBatch:
    """Quantize r updates (r, p); job j has key (seeds[j], round, clients[j]), int64 on the same device."""
    jobs, dimension = updates.shape
    width = bucket_size or dimension
    buckets = triton.cdiv(dimension, width)
    norms, scales, units = find_norms(updates, levels, width, buckets)
    blocks = triton.cdiv(dimension, BLOCK)
    kind = torch.int8 if levels <= 127 else torch.int16
    signed = torch.empty(jobs, blocks * BLOCK, dtype=kind, device=updates.device)
    nonzeros, magnitudes, unsettled = torch.empty(3, jobs, blocks, dtype=torch.int32, device=updates.device)
    arguments = (
        updates, scales, seeds, clients, signed, nonzeros, magnitudes, unsettled,
        round, updates.stride(0), signed.stride(0), dimension, width, buckets, levels, blocks,
    )  # fmt: skip
    count, one_bucket = jobs * blocks, buckets == 1
    levels_kernel[(count,)](*arguments, BLOCK_LANES, one_bucket, num_warps=1, enable_fp_fusion=False)
    settle_kernel[(triton.cdiv(count, SETTLED_BLOCKS),)](
        *arguments, count, BLOCK_LANES, one_bucket, SETTLED_BLOCKS, num_warps=1, enable_fp_fusion=False
    )
    return DeviceBatch(signed, norms, units, nonzeros, magnitudes, width)


def find_norms(updates: Tensor, levels: int, width: int, buckets: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return norms (float32), s / norm and norm / s (float64), each (r, buckets)."""
    jobs, dimension = updates.shape
    chunks = triton.cdiv(min(width, dimension), CHUNK)
    partial = torch.empty(jobs, buckets, chunks, dtype=torch.float64, device=updates.device)
    squares_kernel[(partial.numel(),)](
        updates, partial, updates.stride(0), dimension, width, buckets, chunks, CHUNK, num_warps=8
    )
    norms = torch.empty(jobs, buckets, device=updates.device)
    scales, units = (torch.empty_like(norms, dtype=torch.float64) for _ in range(2))
    norms_kernel[(triton.cdiv(norms.numel(), 128),)](
        partial, norms, scales, units, norms.numel(), chunks, levels, 128, enable_fp_fusion=False
    )
    return norms, scales, units


def add_levels(batch: DeviceBatch, first_job: Tensor, total: Tensor) -> None:
    """Add jobs first_job[run]..first_job[run + 1] to total[run] (runs, p), in order; float64."""
    _add(batch.signed_levels, batch.units, batch.width, first_job, total)


def add_updates(updates: Tensor, first_job: Tensor, total: Tensor) -> None:
    """Add updates (r, p) as they are, each job to its run, in order."""
    _add(updates, None, total.shape[1], first_job, total)


def add_rows(rows: Tensor, units: Tensor, first_job: Tensor, total: Tensor) -> None:
    """Add rows (r, p rounded up to ``SUM_BLOCK``) times their units (r, 1), each job to its run, in order."""
    _add(rows, units, total.shape[1], first_job, total)


def _add(rows: Tensor, units: Tensor | None, width: int, first_job: Tensor, total: Tensor) -> None:
    runs, dimension = total.shape
    buckets = 1 if units is None else units.shape[1]
    sum_kernel[(triton.cdiv(dimension, SUM_BLOCK), runs)](
        rows, units, first_job, total, rows.stride(0), dimension, width, buckets,
        SUM_BLOCK, buckets == 1, units is not None, 8, num_warps=2, enable_fp_fusion=False,
    )  # fmt: skip
