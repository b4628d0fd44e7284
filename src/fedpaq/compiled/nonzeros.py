"""Finding the levels that are not zero, in machine code; twin: ``fedpaq.quantizers.nonzeros``.

Most levels are zero, so eight bytes are looked at as one word, and eight words at once.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

_KINDS = ("int8", "int16")


@njit
def aligned_words(row):
    """Return (head, step, words): after ``head`` levels, words of ``step`` levels each, eight at a time.

    A word must lie at a multiple of eight bytes; what is before and behind the words is fewer than 72 levels.
    """
    step = 8 // row.itemsize
    head = min(row.size, (-row.ctypes.data & 7) // row.itemsize)
    whole = (row.size - head) // (8 * step) * (8 * step)
    return head, step, row[head : head + whole].view(np.uint64)


@njit(inline="always")
def any_of_eight(words, w):
    """Tell whether any of words[w : w + 8] is not zero."""
    low = words[w] | words[w + 1] | words[w + 2] | words[w + 3]
    high = words[w + 4] | words[w + 5] | words[w + 6] | words[w + 7]
    return low | high != 0


@njit
def count_row(row):
    """Return the number of non-zeros; a loop the compiler vectorises."""
    count = 0
    for start in range(0, row.size, 8192):
        part = row[start : start + 8192]
        inside = np.int16(0)
        for i in range(part.size):
            inside += np.int16(part[i] != 0)
        count += inside
    return count


_COUNT = [f"void({kind}[:, ::1], int64[::1])" for kind in _KINDS]


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
def collect_part(row, first, last, found, positions, values):
    """Write the non-zeros of row[first:last]; return how many there are so far."""
    for i in range(first, last):
        if row[i] != 0:
            positions[found] = i
            values[found] = row[i]
            found += 1
    return found


@njit
def collect_row(row, positions, values):
    """Write positions and values of the non-zeros, skipping 64 zero bytes at a time, then eight."""
    head, step, words = aligned_words(row)
    found = collect_part(row, 0, head, 0, positions, values)
    for w in range(0, words.size, 8):
        if any_of_eight(words, w):
            for word in range(w, w + 8):
                if words[word] != 0:
                    first = head + word * step
                    found = collect_part(row, first, first + step, found, positions, values)
    collect_part(row, head + words.size * step, row.size, found, positions, values)


_COLLECT = [f"void({kind}[:, ::1], int64[::1], int64[::1], int16[::1])" for kind in _KINDS]


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
