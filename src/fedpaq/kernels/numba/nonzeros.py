"""Finding the levels that are not zero, in machine code; twin: ``fedpaq.quantizers.nonzeros``.

Most levels are zero, so 64 are looked at as one mask.
"""

from __future__ import annotations

from numba import njit, prange, types, uint64

from fedpaq.kernels.numba.masks import NONE, WIDTH, count_bits, lowest_bit, not_zero

_ROWS = [types.Array(kind, 2, "C", readonly=True) for kind in (types.int8, types.int16)]


@njit
def count_row(row):
    """Return the number of non-zeros."""
    whole = row.size // WIDTH * WIDTH
    count = 0
    for start in range(0, whole, WIDTH):
        count += count_bits(not_zero(row, start))
    for i in range(whole, row.size):
        count += row[i] != 0
    return count


_COUNT = [types.void(rows, types.int64[::1]) for rows in _ROWS]


@njit(_COUNT, cache=True, nogil=True)
def count(rows, counts):
    """Count the non-zeros of every row."""
    for job in range(rows.shape[0]):
        counts[job] = count_row(rows[job])


@njit(_COUNT, cache=True, parallel=True, nogil=True)
def count_on_threads(rows, counts):
    """Count the non-zeros of every row, rows spread over threads."""
    for job in prange(rows.shape[0]):
        counts[job] = count_row(rows[job])


@njit
def collect_row(row, positions, values):
    """Write positions and values of the non-zeros."""
    whole = row.size // WIDTH * WIDTH
    found = 0
    for start in range(0, whole, WIDTH):
        mask = not_zero(row, start)
        while mask != NONE:
            at = start + lowest_bit(mask)
            positions[found] = at
            values[found] = row[at]
            found += 1
            mask &= mask - uint64(1)
    for at in range(whole, row.size):
        if row[at] != 0:
            positions[found] = at
            values[found] = row[at]
            found += 1


_COLLECT = [types.void(rows, types.int64[::1], types.int64[::1], types.int16[::1]) for rows in _ROWS]


@njit(_COLLECT, cache=True, nogil=True)
def collect(rows, ends, positions, values):
    """Write the non-zeros of row j at ends[j] : ends[j + 1]."""
    for job in range(rows.shape[0]):
        collect_row(rows[job], positions[ends[job] : ends[job + 1]], values[ends[job] : ends[job + 1]])


@njit(_COLLECT, cache=True, parallel=True, nogil=True)
def collect_on_threads(rows, ends, positions, values):
    """Write the non-zeros of row j at ends[j] : ends[j + 1], rows spread over threads."""
    for job in prange(rows.shape[0]):
        collect_row(rows[job], positions[ends[job] : ends[job + 1]], values[ends[job] : ends[job + 1]])


@njit(
    "void(int64[::1], int64[::1], int16[::1], float64[:, ::1], int64, int64[::1], float64[:, ::1])",
    cache=True,
    nogil=True,
)
def add(ends, positions, values, units, width, run_of, total):
    """Add each job's message to its run's total, in job order; twin: ``QuantizedMessage.add_to``."""
    for job in range(run_of.size):
        for t in range(ends[job], ends[job + 1]):
            at = positions[t]
            total[run_of[job], at] += values[t] * units[job, at // width]
