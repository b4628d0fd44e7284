"""The low-precision quantizer and the sum of its messages on the GPU.

Twin: ``fedpaq.quantizers.low_precision``, equal to the bit. Three passes over r updates (r, p):

1. norms: one program per client and chunk of 65,536 coordinates, in the pinned order of the sum;
2. levels: one program per client and block of coordinates; Philox, scale, floor, one byte out;
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

from fedpaq.cuda.philox import stream_words

DITHER = tl.constexpr(3)  # Purpose.DITHER
CHUNK = 65_536  # coordinates per partial sum of squares
LANES = tl.constexpr(256)
UNROLL = tl.constexpr(8)  # rows of a chunk loaded before they are added
BLOCK_LANES = 512  # Philox blocks per program of the levels pass
BLOCK = 4 * BLOCK_LANES  # coordinates per program, and per entry of the statistics
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


@triton.jit(do_not_specialize=["round", "levels", "buckets", "blocks"])
def levels_kernel(
    updates, scales, seeds, clients, signed, nonzeros, magnitudes,
    round, stride, signed_stride, dimension, width, buckets, levels, blocks,
    SIZE: tl.constexpr, ONE_BUCKET: tl.constexpr,
):  # fmt: skip
    """level = floor(|x| * s / norm + u) with the sign of x, for one block of one job."""
    block, job = tl.program_id(0) % blocks, (tl.program_id(0) // blocks).to(tl.int64)
    lanes = block * SIZE + tl.arange(0, SIZE)  # Philox blocks
    words = stream_words(lanes, DITHER, tl.load(seeds + job), round, tl.load(clients + job))
    first = lanes // 64 * 256 + lanes % 64  # the coordinate of word 0
    scale = tl.load(scales + job * buckets)
    found, size = tl.zeros([SIZE], tl.int32), tl.zeros([SIZE], tl.int32)
    for w in tl.static_range(4):
        at = first + 64 * w
        inside = at < dimension
        value = tl.load(updates + job * stride + at, mask=inside, other=0.0)
        if not ONE_BUCKET:
            scale = tl.load(scales + job * buckets + at // width, mask=inside, other=0.0)
        dither = words[w].to(tl.float64) * 2.3283064365386963e-10  # 2^-32
        level = (tl.abs(value).to(tl.float64) * scale + dither).to(tl.int32)
        level = tl.where(scale > 0.0, tl.minimum(level, levels), 0)
        found += (level > 0).to(tl.int32)
        size += level
        level = tl.where(value < 0.0, -level, level)
        tl.store(signed + job * signed_stride + at, level.to(signed.dtype.element_ty))
    tl.store(nonzeros + job * blocks + block, tl.sum(found, axis=0))
    tl.store(magnitudes + job * blocks + block, tl.sum(size, axis=0))


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
    nonzeros, magnitudes = torch.empty(2, jobs, blocks, dtype=torch.int32, device=updates.device)
    levels_kernel[(jobs * blocks,)](
        updates, scales, seeds, clients, signed, nonzeros, magnitudes,
        round, updates.stride(0), signed.stride(0), dimension, width, buckets, levels, blocks,
        BLOCK_LANES, buckets == 1, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
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


def _add(rows: Tensor, units: Tensor | None, width: int, first_job: Tensor, total: Tensor) -> None:
    runs, dimension = total.shape
    buckets = 1 if units is None else units.shape[1]
    sum_kernel[(triton.cdiv(dimension, SUM_BLOCK), runs)](
        rows, units, first_job, total, rows.stride(0), dimension, width, buckets,
        SUM_BLOCK, buckets == 1, units is not None, 8, num_warps=2, enable_fp_fusion=False,
    )  # fmt: skip
