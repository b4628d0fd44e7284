"""The random rotation of many updates on the GPU, and back; twin: ``fedpaq.quantizers.rotated.rotation``.

A tile of up to 32,768 coordinates stays in registers, so a block that is one tile is read once and written
once, whatever the turns. A larger block passes its narrow levels tile by tile, its wide ones sixteen rows at a
time. Levels run from narrow to wide and are float32 sums and differences alone, so the order is the twin's.
Signs are one bit of a word: the words are drawn once, for both ways.
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

ROTATION = 11  # Purpose of the first turn's signs; the next two follow
GROUP_COORDINATES = 8192  # whose signs are one group of 256 words


@dataclass(frozen=True)
class Tiling:
    """How blocks are cut for the GPU; every choice gives the same bits."""

    whole: int = 32_768  # blocks up to this size are one tile
    part: int = 8192  # the tile of larger blocks
    coordinates_a_warp: int = 1024
    column_coordinates_a_warp: int = 2048  # more than in a tile: nothing but loads, sums and stores
    radix: int = 16  # rows of a larger block that are mixed at a time
    columns: int = 512  # coordinates of each of these rows

    def tile(self, size: int) -> int:
        """Return the tile of blocks of this size."""
        return size if size <= self.whole else self.part

    def warps(self, coordinates: int) -> int:
        """Return the warps of a program that holds a tile of so many coordinates."""
        return min(max(coordinates // self.coordinates_a_warp, 1), 32)

    def column_warps(self, coordinates: int) -> int:
        """Return the warps of a program that holds so many coordinates in columns."""
        return min(max(coordinates // self.column_coordinates_a_warp, 1), 32)


TILING = Tiling()


@dataclass(frozen=True, eq=False)
class Shape:
    """The blocks of some updates, all cut alike (``quantizers.rotated.Blocks``)."""

    dimension: int
    count: int
    length: int
    size: int
    turns: int

    @property
    def padded(self) -> int:
        """Coordinates in all rotated blocks."""
        return self.count * self.size


@triton.jit(do_not_specialize=["round", "groups", "stride"])
def words_kernel(seeds, clients, words, round, groups, stride, PURPOSE: tl.constexpr):
    """Fill one group of 256 words of one job's stream."""
    job, group = (tl.program_id(0) // groups).to(tl.int64), tl.program_id(0) % groups
    lanes = tl.arange(0, 64)
    drawn = stream_words(group * 64 + lanes, PURPOSE, tl.load(seeds + job), round, tl.load(clients + job))
    for w in tl.static_range(4):
        tl.store(words + job * stride + group * 256 + w * 64 + lanes, drawn[w].to(tl.int32, bitcast=True))


@triton.jit
def flip(x, words, at):
    """Flip the signs of coordinates ``at`` of the padded blocks."""
    word = tl.load(words + at // 1024 * 32 + at % 32)
    bit = (word >> (at // 32 % 32)) << 31
    return (x.to(tl.int32, bitcast=True) ^ bit).to(tl.float32, bitcast=True)


@triton.jit
def mix(x, SIZE: tl.constexpr, WIDTH: tl.constexpr):
    """Pass one level: (a, b) -> (a + b, a - b) for coordinates ``WIDTH`` apart."""
    pairs = tl.permute(tl.reshape(x, (SIZE // (2 * WIDTH), 2, WIDTH)), (0, 2, 1))
    low, high = tl.split(pairs)
    return tl.reshape(tl.permute(tl.join(low + high, low - high), (0, 2, 1)), (SIZE,))


@triton.jit
def transform(x, SIZE: tl.constexpr, LEVELS: tl.constexpr):
    """Pass the levels of a tile."""
    for level in tl.static_range(LEVELS):
        x = mix(x, SIZE, 1 << level)
    return x


@triton.jit(do_not_specialize=["count", "tiles"])
def rotate_kernel(
    updates, jobs, factors, words, rotated, stride, words_stride, turn_stride, dimension, length, count, tiles,
    TILE: tl.constexpr, LEVELS: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """Take one tile through turns FIRST to LAST, all of each if it is a block; turn 0 starts at the update."""
    number, tile = (tl.program_id(0) // tiles).to(tl.int64), tl.program_id(0) % tiles
    row, block = number // count, (number % count).to(tl.int32)
    within = tile * TILE + tl.arange(0, TILE)
    here = rotated + number * tiles * TILE + within
    if FIRST == 0:
        source = block * length + within
        inside = (within < length) & (source < dimension)
        x = tl.load(updates + tl.load(jobs + row) * stride + source, mask=inside, other=0.0)
        x = x * tl.load(factors + number)
    else:
        x = tl.load(here)
    at = block * (tiles * TILE) + within
    for turn in tl.static_range(FIRST, LAST):
        x = transform(flip(x, words + row * words_stride + turn * turn_stride, at), TILE, LEVELS)
    tl.store(here, x)


@triton.jit(do_not_specialize=["chunks"])
def columns_kernel(
    values, width, chunks, RADIX: tl.constexpr, LEVELS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """Pass the levels width, 2 width, ... of some columns of RADIX rows that lie ``width`` apart."""
    group, chunk = (tl.program_id(0) // chunks).to(tl.int64), tl.program_id(0) % chunks
    lane = tl.arange(0, RADIX * COLUMNS)
    here = values + group * RADIX * width + chunk * COLUMNS + (lane // COLUMNS) * width + lane % COLUMNS
    x = tl.load(here)
    for level in tl.static_range(LEVELS):
        x = mix(x, RADIX * COLUMNS, COLUMNS << level)
    tl.store(here, x)


@triton.jit(do_not_specialize=["count", "tiles"])
def rotate_back_kernel(
    levels, rows, targets, scales, words, scratch, estimates, estimates_stride, words_stride, turn_stride,
    dimension, length, count, tiles,
    TILE: tl.constexpr, LEVELS: tl.constexpr, TURNS: tl.constexpr, DONE: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Take one tile back: all turns and the scale if it is a block, else one turn, or the scale alone."""
    place, tile = (tl.program_id(0) // tiles).to(tl.int64), tl.program_id(0) % tiles
    item, block = place // count, (place % count).to(tl.int32)
    row = tl.load(rows + item)
    number = row * count + block
    within = tile * TILE + tl.arange(0, TILE)
    at = block * (tiles * TILE) + within
    signs = words + row * words_stride
    if DONE == 0:
        x = tl.load(levels + number * tiles * TILE + within).to(tl.float32)
    else:
        x = flip(tl.load(scratch + place * tiles * TILE + within), signs + (TURNS - DONE) * turn_stride, at)
    if WHOLE:
        for back in tl.static_range(TURNS):
            x = flip(transform(x, TILE, LEVELS), signs + (TURNS - 1 - back) * turn_stride, at)
    elif DONE < TURNS:
        x = transform(x, TILE, LEVELS)
        tl.store(scratch + place * tiles * TILE + within, x)
    if WHOLE or DONE == TURNS:
        source = block * length + within
        scaled = (x.to(tl.float64) * tl.load(scales + number)).to(tl.float32)
        target = tl.load(targets + item) * estimates_stride
        tl.store(estimates + target + source, scaled, mask=(within < length) & (source < dimension))


def draw_words(seeds: Tensor, round: int, clients: Tensor, purpose: int, words: Tensor) -> None:
    """Fill words (jobs, 256 k) int32 with the start of each job's stream."""
    groups = words.shape[1] // 256
    words_kernel[(len(words) * groups,)](seeds, clients, words, round, groups, words.stride(0), purpose, num_warps=2)


def draw_signs(seeds: Tensor, round: int, clients: Tensor, shape: Shape) -> Tensor:
    """Return the words of signs of each job and turn: (jobs, turns, words) int32."""
    groups = triton.cdiv(shape.padded, GROUP_COORDINATES)
    words = torch.empty(len(seeds), shape.turns, 256 * groups, dtype=torch.int32, device=seeds.device)
    for turn in range(shape.turns):
        draw_words(seeds, round, clients, ROTATION + turn, words[:, turn])
    return words


def rotate(
    updates: Tensor, jobs: Tensor, factors: Tensor, words: Tensor, shape: Shape, tiling: Tiling = TILING
) -> Tensor:
    """Return W (factor x) of some jobs' updates: (jobs, blocks, n) float32; factors are (jobs, blocks)."""
    tile = tiling.tile(shape.size)
    tiles, levels = shape.size // tile, tile.bit_length() - 1
    rotated = torch.empty(len(jobs), shape.count, shape.size, device=updates.device)
    bounds = [(0, shape.turns)] if tiles == 1 else [(turn, turn + 1) for turn in range(shape.turns)]
    for first, last in bounds:
        rotate_kernel[(len(jobs) * shape.count * tiles,)](
            updates, jobs, factors, words, rotated, updates.stride(0), words.stride(0), words.stride(1),
            shape.dimension, shape.length, shape.count, tiles, tile, levels, first, last,
            num_warps=tiling.warps(tile), enable_fp_fusion=False,
        )  # fmt: skip
        mix_columns(rotated, tile, tiling)
    return rotated


def mix_columns(values: Tensor, width: int, tiling: Tiling) -> None:
    """Pass the levels from ``width`` on of blocks (..., n), in place."""
    while width < values.shape[-1]:
        radix = min(tiling.radix, values.shape[-1] // width)
        columns = min(tiling.columns, width)
        chunks = width // columns
        columns_kernel[(values.numel() // (radix * columns),)](
            values, width, chunks, radix, radix.bit_length() - 1, columns,
            num_warps=tiling.column_warps(radix * columns), enable_fp_fusion=False,
        )  # fmt: skip
        width *= radix


def rotate_back(
    levels: Tensor, rows: Tensor, targets: Tensor, scales: Tensor, words: Tensor, shape: Shape,
    estimates: Tensor, tiling: Tiling = TILING,
) -> None:  # fmt: skip
    """Write scale W^T level of some rows of levels (jobs, blocks, n) to rows ``targets`` of ``estimates``."""
    tile = tiling.tile(shape.size)
    tiles = shape.size // tile
    scratch = levels.new_empty(0 if tiles == 1 else len(rows) * shape.padded, dtype=torch.float32)
    for done in range(1 if tiles == 1 else shape.turns + 1):
        rotate_back_kernel[(len(rows) * shape.count * tiles,)](
            levels, rows, targets, scales, words, scratch, estimates, estimates.stride(0),
            words.stride(0), words.stride(1), shape.dimension, shape.length, shape.count, tiles,
            tile, tile.bit_length() - 1, shape.turns, done, tiles == 1,
            num_warps=tiling.warps(tile), enable_fp_fusion=False,
        )  # fmt: skip
        if tiles > 1 and done < shape.turns:
            mix_columns(scratch.view(-1, shape.size), tile, tiling)
