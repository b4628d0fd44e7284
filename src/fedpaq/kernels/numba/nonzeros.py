"""Finding the levels that are not zero, in machine code; twin: ``fedpaq.quantizers.nonzeros``.

Most levels are zero, so 64 are looked at as one mask.
"""

from typing import Any

from numba import njit, types, uint64

from fedpaq.kernels.numba import kernel
from fedpaq.kernels.numba.masks import NONE, WIDTH, count_bits, lowest_bit, not_zero

_KINDS: dict[str, Any] = {"b": types.int8, "h": types.int16}
_ROWS = {char: types.Array(kind, 2, "C", readonly=True) for char, kind in _KINDS.items()}


def _jobs(rows, *_):
    return len(rows), rows.size / 10


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


_COUNT = {char: types.void(rows, types.int64[::1], types.int64, types.int64) for char, rows in _ROWS.items()}


@kernel(_COUNT, by=0, jobs=_jobs)
def count(rows, counts, first, last):
    """Count the non-zeros of every row."""
    for job in range(first, last):
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


_COLLECT = {
    char: types.void(rows, types.int64[::1], types.int64[::1], types.int16[::1], types.int64, types.int64)
    for char, rows in _ROWS.items()
}


@kernel(_COLLECT, by=0, jobs=_jobs)
def collect(rows, ends, positions, values, first, last):
    """Write the non-zeros of row j at ends[j] : ends[j + 1]."""
    for job in range(first, last):
        collect_row(rows[job], positions[ends[job] : ends[job + 1]], values[ends[job] : ends[job + 1]])


@kernel("void(int64[::1], int64[::1], int16[::1], float64[:, ::1], int64, int64[::1], float64[:, ::1])")
def add(ends, positions, values, units, width, run_of, total):
    """Add each job's message to its run's total, in job order; twin: ``QuantizedMessage.add_to``."""
    for job in range(run_of.size):
        for t in range(ends[job], ends[job + 1]):
            at = positions[t]
            total[run_of[job], at] += values[t] * units[job, at // width]
