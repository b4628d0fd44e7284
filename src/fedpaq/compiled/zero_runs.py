"""Zero runs: most levels are zero, so eight bytes are looked at as one word, and eight words as one."""

from __future__ import annotations

import numpy as np
from numba import njit


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
