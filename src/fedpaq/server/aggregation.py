"""Aggregation: what the server makes of the messages of a round. Line 11 of Algorithm 1.

    Mean           (1/r) sum_i Q_i, the paper's and the default: one liar can move it anywhere
    ClippedMean    (1/r) sum_i Q_i min(1, c / ||Q_i||): no client moves the model by more than c / r
    TrimmedMean    per coordinate, the mean without the f r smallest and the f r largest values

Messages are added in client order in double precision, so a result does not depend on how the
round was cut into parts. The robust two keep all r messages of a round in memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fedpaq.config import require_positive
from fedpaq.errors import ConfigError, unknown_name
from fedpaq.kernels import numba as compiled
from fedpaq.quantizers import Message, QuantizedBatch

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
SPARSE = 16  # with fewer than one non-zero in so many levels, only those are visited
COLUMNS = 65_536  # coordinates sorted at a time: bounded memory next to the messages


class Arrivals(Protocol):
    """Takes in the messages of one round of every run."""

    def add(self, messages: Sequence[Message], run_of: Int64) -> None:
        """Take in messages, in client order; message j belongs to run ``run_of[j]``."""

    def mean(self) -> Float64:
        """Return what is added to the params of each run: (runs, p)."""


class Aggregation(Protocol):
    """How a server combines the messages of a round."""

    @property
    def name(self) -> str:
        """Label for history and tables."""

    def start(self, runs: int, dimension: int) -> Arrivals:
        """Return an empty round."""


@dataclass(frozen=True)
class Mean:
    """The paper's uniform mean over what arrived."""

    @property
    def name(self) -> str:
        """Label for history and tables."""
        return "mean"

    def start(self, runs: int, dimension: int) -> Arrivals:
        """Return an empty round."""
        return _Sum(runs, dimension)


@dataclass(frozen=True)
class ClippedMean:
    """The mean of messages whose l2 norm is cut to ``max_norm`` (default: the round's median norm).

    >>> ClippedMean(max_norm=2.0).name
    'clipped mean (norm 2)'
    """

    max_norm: float | None = None

    def __post_init__(self) -> None:
        if self.max_norm is not None:
            require_positive("max_norm", self.max_norm)

    @property
    def name(self) -> str:
        """Label for history and tables."""
        return f"clipped mean (norm {'median' if self.max_norm is None else format(self.max_norm, 'g')})"

    def start(self, runs: int, dimension: int) -> Arrivals:
        """Return an empty round."""
        return _Kept(runs, dimension, self._combine)

    def _combine(self, messages: Sequence[Message], total: Float64) -> Float64:
        norms = np.array([norm_of(message) for message in messages])
        limit = float(np.median(norms)) if self.max_norm is None else self.max_norm
        for message, norm in zip(messages, norms.tolist(), strict=True):
            message.add_to(total, weight=limit / norm if norm > limit else 1.0)
        return total / len(messages)


@dataclass(frozen=True)
class TrimmedMean:
    """The coordinate-wise mean without the ``trim`` share of smallest and of largest values.

    It withstands floor(trim r) liars a round. Use it with many levels: at one level most values
    of a coordinate are zero, and trimming leaves little else.

    >>> TrimmedMean(trim=0.2).name
    'trimmed mean (0.2)'
    """

    trim: float = 0.2

    def __post_init__(self) -> None:
        require_positive("trim", self.trim)
        if self.trim >= 0.5:
            raise ConfigError(f"trim={self.trim} would leave nothing; choose a share in (0, 0.5)")

    @property
    def name(self) -> str:
        """Label for history and tables."""
        return f"trimmed mean ({self.trim:g})"

    def start(self, runs: int, dimension: int) -> Arrivals:
        """Return an empty round."""
        return _Kept(runs, dimension, self._combine)

    def _combine(self, messages: Sequence[Message], total: Float64) -> Float64:
        cut = math.floor(self.trim * len(messages) + 1e-9)  # 0.1 * 30 must be 3
        cut = min(cut, (len(messages) - 1) // 2)  # something must be left just below 0.5, too
        values = np.stack([message.dequantize() for message in messages])  # (r, p)
        if not np.isfinite(values).all():
            return np.full_like(total, np.nan)  # sorting would hide that the run has diverged
        for start in range(0, values.shape[1], COLUMNS):
            ordered = np.sort(values[:, start : start + COLUMNS], axis=0)
            kept = ordered[cut : len(messages) - cut]
            total[start : start + COLUMNS] = kept.mean(axis=0, dtype=np.float64)
        return total


AGGREGATIONS: dict[str, type[Mean | ClippedMean | TrimmedMean]] = {
    "mean": Mean,
    "clipped": ClippedMean,
    "trimmed": TrimmedMean,
}


def find_aggregation(name: str) -> Aggregation:
    """Return the aggregation of this name with its defaults.

    >>> find_aggregation("trimmed")
    TrimmedMean(trim=0.2)
    """
    if name not in AGGREGATIONS:
        raise unknown_name("aggregation", name, AGGREGATIONS)
    return AGGREGATIONS[name]()


class _Sum:
    """Adds messages up as they come: memory does not grow with r."""

    def __init__(self, runs: int, dimension: int) -> None:
        self._total, self._arrived = np.zeros((runs, dimension)), np.zeros(runs, np.int64)

    def add(self, messages: Sequence[Message], run_of: Int64) -> None:
        add_messages(messages, run_of, self._total)
        np.add.at(self._arrived, run_of, 1)

    def mean(self) -> Float64:
        return self._total / self._arrived[:, None]


class _Kept:
    """Keeps the messages of each run until the round is complete."""

    def __init__(self, runs: int, dimension: int, combine: _Combine) -> None:
        self._messages: list[list[Message]] = [[] for _ in range(runs)]
        self._dimension, self._combine = dimension, combine

    def add(self, messages: Sequence[Message], run_of: Int64) -> None:
        for message, run in zip(messages, run_of.tolist(), strict=True):
            self._messages[run].append(message)

    def mean(self) -> Float64:
        rows = [self._combine(messages, np.zeros(self._dimension)) for messages in self._messages]
        return np.stack(rows)


class _Combine(Protocol):
    def __call__(self, messages: Sequence[Message], total: Float64) -> Float64: ...


def norm_of(message: Message) -> float:
    """Return the l2 norm of what the message stands for, not what it claims."""
    return float(np.linalg.norm(message.dequantize().astype(np.float64)))


def add_messages(messages: Sequence[Message], run_of: Int64, total: Float64) -> None:
    """Add messages, in order, to the totals of their runs: (runs, p)."""
    kernels = compiled.load("nonzeros")
    if kernels is not None and isinstance(messages, QuantizedBatch):
        width = messages.bucket_size or max(total.shape[1], 1)
        units = np.asarray(messages.norms, np.float64) / messages.levels
        if SPARSE * messages.counts.sum() < messages.signed_levels.size:
            found = messages.nonzeros
            kernels.add(found.ends, found.positions, found.values, units, width, run_of, total)
        else:
            compiled.load("low_precision").add_levels(messages.signed_levels, units, width, run_of, total)
        return
    for message, run in zip(messages, run_of, strict=True):
        message.add_to(total[run])
