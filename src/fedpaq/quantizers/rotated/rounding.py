"""Rounding: levels of rotated blocks, either the signs of the few largest, or multiples of a step.

    few:  level_i = sign(z_i) where |z_i| is among the ``wanted`` largest (and ties), else 0
    all:  level_i = round(z_i / (2 least))

Below half a bit a coordinate one threshold and a sign are the best scalar quantizer of a Gaussian; above it,
to 0.1 %, rounding to the nearest multiple of a step is. The threshold is chosen by rank, so that an update
whose rotated magnitudes are all alike sends something, and the number sent does not depend on chance.

Pinned: magnitudes are compared and scaled in float32, <z, level> is summed in double precision by 256 lanes
that run down the block and are halved (256, 128, ... 1).
"""

from dataclasses import dataclass

import numpy as np

from fedpaq.arrays import Float32, Float64, Int16, Int64
from fedpaq.kernels import numba as compiled
from fedpaq.quantizers.low_precision import sum_in_lanes
from fedpaq.quantizers.message import MAX_LEVELS
from fedpaq.quantizers.rotated.rotation import CELL


def product_numpy(values: Float32, levels: Int16) -> float:
    """Return <values, levels> in the pinned order."""
    return sum_in_lanes(values.astype(np.float64) * levels)


def round_numpy(values: Float32, wanted: int, least: np.float32) -> Int16:
    """Return the levels of one block; the slow twin of the compiled kernel.

    ``wanted`` is how many to send, 0 for none, -1 for all that round to something at the threshold ``least``
    (the largest, if none does).
    """
    sizes = np.abs(values)
    if wanted < 0:
        scaled = np.minimum(sizes * (np.float32(0.5) / least) + np.float32(0.5), np.float32(MAX_LEVELS))
        levels = np.where(values < 0, -1, 1) * scaled.astype(np.int32)
        if levels.any():
            return np.asarray(levels, np.int16)
        wanted = 1
    if wanted == 0:
        return np.zeros(values.size, np.int16)
    threshold = np.partition(sizes, values.size - wanted)[values.size - wanted]
    return np.asarray(np.where(sizes >= threshold, np.sign(values), 0), np.int16)


@dataclass(frozen=True)
class Rounded:
    """Levels of all blocks, and what is known of each block."""

    levels: Int16  # (blocks * n,)
    products: Float64  # <z, level>, (blocks,)
    counts: Int64  # non-zeros, (blocks,)
    largest: Int64  # magnitude, (blocks,)


def round_blocks(rotated: Float32, wanted: Int64, least: Float32) -> Rounded:
    """Round each block (blocks, n)."""
    levels = np.empty(rotated.size, np.int16)
    products = np.empty(len(rotated))
    counts, largest = np.empty(len(rotated), np.int64), np.empty(len(rotated), np.int64)
    kernels = compiled.load("rounding")
    if kernels is not None:
        kernels.round_blocks(rotated, wanted, least, levels, products, counts, largest)
        return Rounded(levels, products, counts, largest)
    rows = levels.reshape(rotated.shape)
    for block, values in enumerate(rotated):
        rows[block] = round_numpy(values, int(wanted[block]), least[block])
        products[block] = product_numpy(values, rows[block])
        counts[block], largest[block] = np.count_nonzero(rows[block]), np.abs(rows[block]).max()
    return Rounded(levels, products, counts, largest)


def sum_cells(update: Float32) -> tuple[Float64, Float64]:
    """Return the sums of x^2 and |x| over cells of 64 coordinates, added in halves (64, 32, ... 1)."""
    cells = -(-update.size // CELL)
    squares, magnitudes = np.empty(cells), np.empty(cells)
    kernels = compiled.load("rounding")
    if kernels is not None:
        kernels.sum_cells(update, squares, magnitudes)
        return squares, magnitudes
    padded = np.zeros((cells, CELL))
    padded.reshape(-1)[: update.size] = update
    for values, sums in ((padded**2, squares), (np.abs(padded), magnitudes)):
        while values.shape[1] > 1:
            values = values[:, : values.shape[1] // 2] + values[:, values.shape[1] // 2 :]
        sums[:] = values[:, 0]
    return squares, magnitudes
