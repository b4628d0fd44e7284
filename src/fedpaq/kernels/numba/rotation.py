"""The rotation in machine code; twin: ``fedpaq.quantizers.rotated.rotation``.

A tile of 4096 coordinates passes its narrow levels in the first cache; wider levels pass three at a time, since
more runs than the caches have ways, all a power of two apart, would evict each other.
"""

import numpy as np
from numba import njit, types

from fedpaq.kernels.numba import kernel
from fedpaq.kernels.numba.butterflies import RUN, mix_2, mix_4, mix_8, mix_16, mix_run
from fedpaq.kernels.numba.philox import GROUP, fill_group

ROTATION = 11  # Purpose of the first turn's signs; the next two follow
TILE = 4096
SIGNS = 32 * GROUP  # coordinates whose signs are one group of words


@njit
def transform_small(values):
    """Transform fewer than 256 coordinates in place."""
    width = 1
    while width < values.size:
        for start in range(0, values.size, 2 * width):
            for low in range(start, start + width):
                one, other = values[low], values[low + width]
                values[low] = one + other
                values[low + width] = one - other
        width *= 2


@njit
def transform_tile(values):
    """Pass the levels of up to 4096 coordinates, in place."""
    if values.size < RUN:
        transform_small(values)
        return
    for start in range(0, values.size, RUN):
        mix_run(values, start, 16)
    if values.size == TILE:
        for start in range(0, RUN, 16):
            mix_16(values, start, RUN)
    else:
        transform_wide(values, RUN)


@njit
def transform_wide(values, width):
    """Pass the levels from ``width`` on, in place."""
    while width < values.size:
        runs = min(8, values.size // width)
        for group in range(0, values.size, runs * width):
            for start in range(group, group + width, 16):
                if runs == 8:
                    mix_8(values, start, width)
                elif runs == 4:
                    mix_4(values, start, width)
                else:
                    mix_2(values, start, width)
        width *= runs


@njit
def flip(values, first, words):
    """Flip signs of coordinates ``first``.. of a block by the words of their group of 8192."""
    bits = values.view(np.uint32)
    for run in range(0, bits.size, 32):
        at = first + run
        base = at % SIGNS // 1024 * 32
        shift = np.uint32(31 - at // 32 % 32)
        part = bits[run : run + 32]
        chosen = words[base + at % 32 : base + 32]
        for i in range(part.size):
            part[i] ^= (chosen[i] << shift) & np.uint32(0x80000000)


@njit
def flip_all(values, first, purpose, seed, round, client, words, then_transform):
    """Flip the signs of a block that starts at coordinate ``first`` of the stream, tile by tile."""
    group = -1
    for start in range(0, values.size, TILE):
        if (first + start) // SIGNS != group:
            group = (first + start) // SIGNS
            fill_group(group, purpose, seed, round, client, words)
        tile = values[start : start + TILE]
        flip(tile, first + start, words)
        if then_transform:
            transform_tile(tile)


@njit
def rotate_block(part, factor, first, turns, seed, round, client, out):
    """Fill ``out`` with the rotated block; ``first`` is where it starts in the streams of signs."""
    words = np.empty(GROUP, np.uint32)
    for i in range(part.size):
        out[i] = part[i] * factor
    out[part.size :] = 0
    for turn in range(turns):
        flip_all(out, first, ROTATION + turn, seed, round, client, words, True)
        transform_wide(out, TILE)


@njit
def rotate_block_back(levels, first, turns, seed, round, client, out):
    """Fill ``out`` with W^T level."""
    words = np.empty(GROUP, np.uint32)
    for start in range(0, levels.size, TILE):
        tile, part = out[start : start + TILE], levels[start : start + TILE]
        for i in range(tile.size):
            tile[i] = part[i]
        transform_tile(tile)
    transform_wide(out, TILE)
    for back in range(1, turns):
        flip_all(out, first, ROTATION + turns - back, seed, round, client, words, True)
        transform_wide(out, TILE)
    flip_all(out, first, ROTATION, seed, round, client, words, False)


_VECTOR = types.Array(types.float32, 1, "C", readonly=True)
_LEVELS = types.Array(types.int16, 1, "C", readonly=True)
_KEY = (types.uint64, types.int64, types.int64)
_SPAN = (types.int64, types.int64)


@kernel(
    types.void(_VECTOR, types.int64, types.int64, types.float32[::1], *_KEY, types.float32[:, ::1], *_SPAN),
    jobs=lambda *arguments: (len(arguments[-1]), arguments[-1].size),
)
def rotate(update, length, turns, factors, seed, round, client, out, first, last):
    """Fill ``out`` (blocks, n) with the rotated blocks; twin: ``rotate_numpy``."""
    for block in range(first, last):
        part = update[block * length : min((block + 1) * length, update.size)]
        rotate_block(part, factors[block], block * out.shape[1], turns, seed, round, client, out[block])


@kernel(
    types.void(_LEVELS, *[types.int64] * 3, types.float64[::1], *_KEY, types.float32[::1], *_SPAN),
    jobs=lambda levels, length, size, turns, scales, *_: (scales.size, levels.size),
)
def rotate_back(levels, length, size, turns, scales, seed, round, client, out, first, last):
    """Fill ``out`` (p,) with scale W^T level of each block; twin: ``rotate_back_numpy``."""
    rows = np.empty(size, np.float32)
    for block in range(first, last):
        part = levels[block * size : (block + 1) * size]
        rotate_block_back(part, block * size, turns, seed, round, client, rows)
        place = out[block * length : min((block + 1) * length, out.size)]
        scale = scales[block]
        for i in range(place.size):
            place[i] = np.float32(np.float64(rows[i]) * scale)
