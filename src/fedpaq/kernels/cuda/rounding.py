"""Levels of rotated blocks on the GPU; twin: ``fedpaq.quantizers.rotated.rounding``, equal to the bit.

The k-th largest magnitude of a block is found among those above a guess, which are collected in any order:
a bisection of their bits, as integers. Sums of cells and products are added in the twin's order.
"""

# Triton types the kernels itself when it compiles them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

CELL = tl.constexpr(64)
CELLS = 32  # cells per program
COLLECTED = 4096  # coordinates per program that collects
SEARCHED = tl.constexpr(1024)  # magnitudes looked at in a step of the search
LANES = 256
SPARE = 8  # magnitudes above the guess, in units of those wanted, before the whole block is searched
NONE = tl.constexpr(0x7FFFFFFF)  # a threshold that no magnitude reaches
MOST_LEVELS = tl.constexpr(32767.0)


@dataclass(frozen=True, eq=False)
class RoundedBlocks:
    """Levels (jobs, blocks, n), and of each block: <z, level>, non-zeros, sum and largest of the magnitudes."""

    levels: Tensor  # int8 or int16
    products: Tensor  # float64
    counts: Tensor  # int32
    magnitudes: Tensor  # int64
    largest: Tensor  # int32


@triton.jit(do_not_specialize=["cells", "chunks"])
def cells_kernel(updates, squares, magnitudes, stride, dimension, cells, chunks, CELLS: tl.constexpr):
    """Sum x^2 and |x| over some cells of 64 coordinates, added in halves (64, 32, ... 1)."""
    job, chunk = (tl.program_id(0) // chunks).to(tl.int64), tl.program_id(0) % chunks
    at = chunk * CELLS * CELL + tl.arange(0, CELLS * CELL)
    value = tl.load(updates + job * stride + at, mask=at < dimension, other=0.0).to(tl.float64)
    size = tl.abs(value)
    square = size * size
    for step in tl.static_range(6):
        square = tl.sum(tl.reshape(square, (CELLS, 2, 32 >> step)), axis=1)  # two terms: no order to fix
        size = tl.sum(tl.reshape(size, (CELLS, 2, 32 >> step)), axis=1)
    cell = chunk * CELLS + tl.arange(0, CELLS)
    tl.store(squares + job * cells + cell, tl.reshape(square, (CELLS,)), mask=cell < cells)
    tl.store(magnitudes + job * cells + cell, tl.reshape(size, (CELLS,)), mask=cell < cells)


@triton.jit
def magnitude_bits(values):
    """Return |x| as integers, which are ordered as the magnitudes are."""
    return values.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit(do_not_specialize=["tiles", "capacity"])
def collect_kernel(
    rotated, wanted, guesses, found, collected, tiles, capacity, size, SIZE: tl.constexpr
):  # fmt: skip
    """Append the magnitudes of a tile that reach the block's guess, in any order, and count all of them."""
    number, tile = (tl.program_id(0) // tiles).to(tl.int64), tl.program_id(0) % tiles
    if tl.load(wanted + number) > 0:
        bits = magnitude_bits(tl.load(rotated + number * size + tile * SIZE + tl.arange(0, SIZE)))
        reached = (bits >= magnitude_bits(tl.load(guesses + number))).to(tl.int32)
        count = tl.sum(reached, axis=0)
        if count > 0:
            place = tl.atomic_add(found + number, count) + tl.cumsum(reached, axis=0) - 1
            tl.store(collected + number * capacity + place, bits, mask=(reached > 0) & (place < capacity))


@triton.jit
def largest_of(source, count):
    """Return the largest of ``count`` integers, none negative."""
    lanes = tl.arange(0, SEARCHED)
    most = tl.zeros([SEARCHED], tl.int32)
    for start in range(0, count, SEARCHED):
        most = tl.maximum(most, tl.load(source + start + lanes, mask=start + lanes < count, other=0) & NONE)
    return tl.max(most, axis=0)


@triton.jit
def kth_largest(source, count, k):
    """Return the k-th largest of ``count`` integers, whose signs are ignored."""
    lanes = tl.arange(0, SEARCHED)
    low, high = largest_of(source, 0), largest_of(source, count) + 1
    while high - low > 1:
        middle = low + (high - low) // 2
        reached = tl.zeros([SEARCHED], tl.int32)
        for start in range(0, count, SEARCHED):
            inside = start + lanes < count
            bits = tl.load(source + start + lanes, mask=inside, other=0) & NONE
            reached += ((bits >= middle) & inside).to(tl.int32)
        if tl.sum(reached, axis=0) >= k:
            low = middle
        else:
            high = middle
    return low


@triton.jit(do_not_specialize=["capacity"])
def threshold_kernel(rotated, wanted, inverses, found, collected, thresholds, capacity, size):
    """Find the least magnitude that one block sends, as bits; -1 where all that round to something are sent."""
    number = tl.program_id(0).to(tl.int64)
    k = tl.load(wanted + number)
    threshold = NONE
    if k < 0:
        most = largest_of(rotated + number * size, size)
        scaled = most.to(tl.float32, bitcast=True) * tl.load(inverses + number) + 0.5
        threshold = tl.where(scaled >= 1.0, -1, most)
    elif k > 0:
        count = tl.load(found + number)
        if (count >= k) & (count <= capacity):
            threshold = kth_largest(collected + number * capacity, count, k)
        else:
            threshold = kth_largest(rotated + number * size, size, k)
    tl.store(thresholds + number, threshold)


@triton.jit
def levels_kernel(
    rotated, inverses, thresholds, levels, products, counts, magnitudes, largest, size,
    LANES: tl.constexpr, HALVINGS: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Round one block; 256 lanes run down it, then the lanes are halved."""
    number = tl.program_id(0).to(tl.int64)
    threshold, inverse = tl.load(thresholds + number), tl.load(inverses + number)
    at = number * size + tl.arange(0, LANES)
    product = tl.zeros([LANES], tl.float64)
    sent, sizes, most = (tl.zeros([LANES], tl.int32), tl.zeros([LANES], tl.int32), tl.zeros([LANES], tl.int32))
    for start in range(0, size, UNROLL * LANES):
        for part in tl.static_range(UNROLL):
            value = tl.load(rotated + at + start + part * LANES)
            rounded = tl.minimum(tl.abs(value) * inverse + 0.5, MOST_LEVELS).to(tl.int32)
            few = ((magnitude_bits(value) >= threshold) & (value != 0.0)).to(tl.int32)
            level = tl.where(threshold < 0, rounded, few)
            sent += (level > 0).to(tl.int32)
            sizes += level
            most = tl.maximum(most, level)
            level = tl.where(value < 0.0, -level, level)
            product += value.to(tl.float64) * level.to(tl.float64)
            tl.store(levels + at + start + part * LANES, level.to(levels.dtype.element_ty))
    for step in tl.static_range(HALVINGS):
        product = tl.sum(tl.reshape(product, (2, LANES >> (step + 1))), axis=0)  # two terms: no order to fix
    tl.store(products + number, tl.sum(product, axis=0))
    tl.store(counts + number, tl.sum(sent, axis=0))
    tl.store(magnitudes + number, tl.sum(sizes.to(tl.int64), axis=0))
    tl.store(largest + number, tl.max(most, axis=0))


def sum_cells(updates: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sums of x^2 and |x| over cells of 64 coordinates of each update: (jobs, cells) float64."""
    jobs, dimension = updates.shape
    cells = triton.cdiv(dimension, CELL.value)
    squares, magnitudes = torch.empty(2, jobs, cells, dtype=torch.float64, device=updates.device)
    chunks = triton.cdiv(cells, CELLS)
    cells_kernel[(jobs * chunks,)](
        updates, squares, magnitudes, updates.stride(0), dimension, cells, chunks, CELLS,
        num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    return squares, magnitudes


def round_blocks(
    rotated: Tensor, wanted: Tensor, guesses: Tensor, inverses: Tensor, most_wanted: int, kind: torch.dtype
) -> RoundedBlocks:
    """Round blocks (jobs, blocks, n); the others are (jobs, blocks).

    ``wanted`` (int32) is the twin's; ``guesses`` (float32) are below the magnitudes wanted, or the search is
    slow; ``inverses`` (float32) are 0.5 / least. ``kind`` is int8 where no block sends all.
    """
    size, blocks = rotated.shape[2], wanted.numel()
    tile = min(size, COLLECTED)
    capacity = min(size, triton.next_power_of_2(max(SPARE * most_wanted, 64)))
    found = torch.zeros(wanted.shape, dtype=torch.int32, device=rotated.device)
    collected = torch.empty(blocks, capacity, dtype=torch.int32, device=rotated.device)
    thresholds, counts, largest = (torch.empty_like(found) for _ in range(3))
    magnitudes = torch.empty_like(found, dtype=torch.int64)
    tiles = size // tile
    if most_wanted > 0:
        collect_kernel[(blocks * tiles,)](
            rotated, wanted, guesses, found, collected, tiles, capacity, size, tile, num_warps=4
        )
    integers = rotated.view(torch.int32)
    threshold_kernel[(blocks,)](
        integers, wanted, inverses, found, collected, thresholds, capacity, size,
        num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    levels = torch.empty(rotated.shape, dtype=kind, device=rotated.device)
    products = torch.empty(wanted.shape, dtype=torch.float64, device=rotated.device)
    lanes = min(size, LANES)
    levels_kernel[(blocks,)](
        rotated, inverses, thresholds, levels, products, counts, magnitudes, largest, size,
        lanes, lanes.bit_length() - 1, min(8, size // lanes),
        num_warps=max(lanes // 32, 1), enable_fp_fusion=False,
    )  # fmt: skip
    return RoundedBlocks(levels, products, counts, magnitudes, largest)
