"""Aggregation: what the server makes of the messages of a round. Line 11 of Algorithm 1.

    Mean           (1/r) sum_i Q_i, the paper's and the default: a single dishonest client can move it anywhere
    WeightedMean   sum_i n_i Q_i / sum_i n_i, FedAvg's: client i counts as often as it has examples
    ClippedMean    (1/r) sum_i Q_i min(1, c / ||Q_i||): no client moves the model by more than c / r
    TrimmedMean    per coordinate, the mean without the f r smallest and the f r largest values

Messages are added in client order in double precision, so a result does not depend on how the
round was cut into parts. The robust two keep all r messages of a round in memory.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from fedpaq import codec
from fedpaq.arrays import Float64, Int64
from fedpaq.config import require_instance_with, require_positive
from fedpaq.errors import ConfigError, unknown_name
from fedpaq.quantizers import Key, Message
from fedpaq.server.mean import MeanAccumulator, require_fit

COLUMNS = 65_536  # coordinates sorted at a time: bounded memory next to the messages


class RoundAccumulator(Protocol):
    """Takes in the messages of one round of every run."""

    def add(self, messages: Sequence[Message], run_of: Int64) -> None:
        """Take in messages, in client order; message j belongs to run ``run_of[j]``."""

    def add_payload(self, payload: Any, run: int, key: Key) -> None:
        """Take in the payload of a key; on WireFormatError all is as it was."""

    def mean(self) -> Float64:
        """Return what is added to the params of each run: (runs, p)."""


class Aggregation(Protocol):
    """How a server combines the messages of a round."""

    @property
    def name(self) -> str:
        """Label for history and tables."""

    def start(self, runs: int, dimension: int) -> RoundAccumulator:
        """Return an empty round."""


@dataclass(frozen=True)
class Mean:
    """The paper's uniform mean over what arrived."""

    name: ClassVar[str] = "mean"

    def start(self, runs: int, dimension: int) -> MeanAccumulator:
        """Return an empty round."""
        return MeanAccumulator(runs, dimension)


@dataclass(frozen=True)
class WeightedMean:
    """FedAvg's mean: each client counts as often as it has examples; Flower clients say how many they have."""

    name: ClassVar[str] = "mean weighted by examples"

    def start(self, runs: int, dimension: int) -> MeanAccumulator:
        """Return an empty round."""
        return MeanAccumulator(runs, dimension)


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

    def start(self, runs: int, dimension: int) -> RoundAccumulator:
        """Return an empty round."""
        return StoredMessages(runs, dimension, self._combine)

    def _combine(self, messages: Sequence[Message], total: Float64) -> Float64:
        norms = np.array([norm_of(message) for message in messages])
        limit = float(np.median(norms)) if self.max_norm is None else self.max_norm
        for message, norm in zip(messages, norms.tolist(), strict=True):
            message.add_to(total, weight=limit / norm if norm > limit else 1.0)
        return total / len(messages)


@dataclass(frozen=True)
class TrimmedMean:
    """The coordinate-wise mean without the ``trim`` share of smallest and of largest values.

    It withstands floor(trim r) dishonest clients per round. Use it with many levels: at one level most values
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

    def start(self, runs: int, dimension: int) -> RoundAccumulator:
        """Return an empty round."""
        return StoredMessages(runs, dimension, self._combine)

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


AGGREGATIONS: dict[str, type[Mean | WeightedMean | ClippedMean | TrimmedMean]] = {
    "mean": Mean,
    "weighted": WeightedMean,
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


def as_aggregation(given: Aggregation | str) -> Aggregation:
    """Return an aggregation given as one or as its name."""
    if isinstance(given, str):
        return find_aggregation(given)
    require_instance_with("aggregation", given, ("name", "start"), "TrimmedMean(trim=0.2), 'trimmed'")
    return given


class StoredMessages:
    """Keeps the messages of each run until the round is complete."""

    def __init__(self, runs: int, dimension: int, combine: Callable[[Sequence[Message], Float64], Float64]) -> None:
        self._messages: list[list[Message]] = [[] for _ in range(runs)]
        self._dimension, self._combine = dimension, combine

    def add(self, messages: Sequence[Message], run_of: Int64) -> None:
        require_fit(messages, run_of, len(self._messages), self._dimension)
        for message, run in zip(messages, run_of.tolist(), strict=True):
            self._messages[run].append(message)

    def add_payload(self, payload: Any, run: int, key: Key) -> None:
        self._messages[run].append(codec.decode(payload, dimension=self._dimension, key=key))

    def mean(self) -> Float64:
        return np.stack([self._combine(messages, np.zeros(self._dimension)) for messages in self._messages])


def norm_of(message: Message) -> float:
    """Return the l2 norm of what the message stands for, not what it claims."""
    return float(np.linalg.norm(message.dequantize().astype(np.float64)))
