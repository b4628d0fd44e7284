"""Rounding of rotated blocks in machine code; twin: ``fedpaq.quantizers.rotated.rounding``."""

import numpy as np
from numba import njit, types, uint64

from fedpaq.kernels.numba import kernel
from fedpaq.kernels.numba.cells import CELL, sum_cell
from fedpaq.kernels.numba.low_precision import LANES, halve
from fedpaq.kernels.numba.masks import NONE, WIDTH, lowest_bit, not_zero

RUN = 4096
MAGNITUDE = 0x7FFFFFFF


@njit
def collect(values, least, places):
    """Write the places of magnitudes >= least, ascending, and return how many there are."""
    flags = np.zeros(RUN, np.uint8)
    count = 0
    for start in range(0, values.size, RUN):
        part = values[start : start + RUN]
        for i in range(part.size):
            flags[i] = abs(part[i]) >= least
        for first in range(0, part.size, WIDTH):
            mask = not_zero(flags, first)
            while mask != NONE:
                at = first + lowest_bit(mask)
                if at < part.size:
                    places[uint64(count)] = start + at
                    count += 1
                mask &= mask - uint64(1)
    return count


@njit
def kth_largest(bits, places, count, k):
    """Return the k-th largest magnitude among bits[places[:count]], as bits, found eight at a time.

    Floats of one sign are ordered as their bits are.
    """
    chosen, prefix = 0, 0
    for turn in range(4):
        shift = 24 - 8 * turn
        histogram = np.zeros(256, np.int64)
        for n in range(count):
            magnitude = np.int64(bits[places[n]]) & MAGNITUDE
            if magnitude & prefix == chosen:
                histogram[(magnitude >> shift) & 255] += 1
        digit = 255
        while histogram[digit] < k:
            k -= histogram[digit]
            digit -= 1
        chosen |= digit << shift
        prefix |= 255 << shift
    return chosen


@njit
def round_few(values, wanted, guess, levels):
    """Send the signs of the ``wanted`` largest and of ties; return <values, levels>, their number, 1."""
    places = np.empty(values.size + WIDTH, np.uint32)
    count = collect(values, guess, places)
    if count < wanted:
        count = collect(values, np.float32(0), places)
    bits = values.view(np.uint32)
    least = kth_largest(bits, places, count, min(wanted, count))
    levels[:] = 0
    lanes = np.zeros(LANES, np.float64)
    sent = 0
    for n in range(count):
        at = places[n]
        value = values[at]
        if np.int64(bits[at]) & MAGNITUDE >= least and value != 0:
            levels[at] = -1 if value < 0 else 1
            lanes[at % LANES] += np.float64(abs(value))
            sent += 1
    return halve(lanes), sent, 1


@njit
def round_all(values, least, levels):
    """Round to multiples of 2 ``least``; return <values, levels>, non-zeros, the largest level."""
    inverse = np.float32(0.5) / least
    lanes = np.zeros(LANES, np.float64)
    sent, largest = 0, np.int32(0)
    for start in range(0, values.size, LANES):
        part, out = values[start : start + LANES], levels[start : start + LANES]
        for i in range(part.size):
            scaled = min(abs(part[i]) * inverse + np.float32(0.5), np.float32(32767.0))
            level = np.int32(scaled)
            largest = max(largest, level)
            out[i] = -level if part[i] < 0 else level
        for i in range(part.size):
            lanes[i] += np.float64(part[i]) * np.float64(out[i])
        few = np.int32(0)
        for i in range(part.size):
            few += np.int32(out[i] != 0)
        sent += few
    return halve(lanes), sent, np.int64(largest)


@njit
def round_block(values, wanted, least, levels):
    """Fill the levels of one block; see ``fedpaq.quantizers.rotated.rounding.round_numpy``."""
    if wanted == 0:
        levels[:] = 0
        return 0.0, 0, 0
    if wanted < 0:
        product, sent, largest = round_all(values, least, levels)
        if sent > 0:
            return product, sent, largest
        wanted, least = 1, np.float32(0)
    return round_few(values, wanted, least, levels)


_INTEGERS = types.int64[::1]


@kernel(
    types.void(
        types.float32[:, ::1], _INTEGERS, types.float32[::1], types.int16[::1], types.float64[::1], _INTEGERS,
        _INTEGERS, types.int64, types.int64,
    ),
    jobs=lambda rotated, *_: (len(rotated), rotated.size),
)  # fmt: skip
def round_blocks(rotated, wanted, least, levels, products, counts, largest, first, last):
    """Fill levels (blocks * n,); and <rotated, levels>, non-zeros and largest level of each block."""
    size = rotated.shape[1]
    for block in range(first, last):
        part = levels[block * size : (block + 1) * size]
        found = round_block(rotated[block], wanted[block], least[block], part)
        products[block], counts[block], largest[block] = found


@kernel(types.void(types.Array(types.float32, 1, "C", readonly=True), types.float64[::1], types.float64[::1]))
def sum_cells(update, squares, magnitudes):
    """Sum x^2 and |x| over cells of 64 coordinates, added in halves."""
    whole = update.size // CELL
    for cell in range(whole):
        squares[cell], magnitudes[cell] = sum_cell(update, cell * CELL)
    if whole < squares.size:
        last = np.zeros(CELL, np.float32)
        last[: update.size - whole * CELL] = update[whole * CELL :]
        squares[whole], magnitudes[whole] = sum_cell(last, 0)
