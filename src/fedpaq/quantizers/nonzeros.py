"""Nonzeros: the levels of some messages that are not zero, which is all that is coded, sent and added."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedpaq.arrays import AnyArray, Int16, Int64
from fedpaq.kernels import numba as compiled


@dataclass(frozen=True)
class Nonzeros:
    """Message j has its non-zeros at ends[j] : ends[j + 1]."""

    levels: AnyArray  # (p,) or (r, p): what they are the non-zeros of
    ends: Int64  # (r + 1,)
    positions: Int64
    values: Int16

    def of(self, job: int, levels: AnyArray) -> Nonzeros:
        """Return those of one message, whose levels these are."""
        part = slice(int(self.ends[:-1][job]), int(self.ends[1:][job]))
        return Nonzeros(levels, np.array([0, part.stop - part.start]), self.positions[part], self.values[part])


def compact_rows(levels: AnyArray, counts: Int64, positions: Int64, values: Int16) -> Nonzeros:
    """Return the non-zeros of levels (r, p), of which row j of (r, room) holds the first ``counts[j]``."""
    ends = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=ends[1:])
    if len(counts) == 1:  # nothing to move together
        return Nonzeros(levels, ends, positions[0, : ends[1]], values[0, : ends[1]])
    held = np.arange(positions.shape[1]) < counts[:, None]
    return Nonzeros(levels, ends, positions[held], values[held])


def count(rows: AnyArray) -> Int64:
    """Return the number of non-zeros of each row of levels (r, p)."""
    kernels = compiled.load("nonzeros")
    if kernels is None:
        return np.asarray(np.count_nonzero(rows, axis=1), np.int64)
    counts = np.empty(len(rows), np.int64)
    kernels.count(rows, counts)
    return counts


def collect(rows: AnyArray, counts: Int64) -> Nonzeros:
    """Return the non-zeros of levels (r, p), of which there are ``counts`` in each row."""
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    kernels = compiled.load("nonzeros")
    if kernels is None:
        at = np.nonzero(rows)
        return Nonzeros(rows, ends, at[1], rows[at].astype(np.int16))
    positions, values = np.empty(ends[-1], np.int64), np.empty(ends[-1], np.int16)
    kernels.collect(rows, ends, positions, values)
    return Nonzeros(rows, ends, positions, values)
