"""MeanAccumulator: the plain mean of a round, the same wherever fedpaq runs. Line 11 of Algorithm 1.

Messages are added in client order in double precision and divided by their number, or by the sum of their weights.
The simulator adds messages, several ranks and Flower add payloads, all through here, so they agree to the bit; a GPU
does the same operations where the updates are (``OnDevice``).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedpaq import codec
from fedpaq.arrays import Float64, Int64
from fedpaq.errors import ConfigError
from fedpaq.kernels import numba as compiled
from fedpaq.quantizers import Key, Message, QuantizedBatch

SPARSE = 16  # with fewer than one non-zero in so many levels, only those are visited


class MeanAccumulator:
    """Adds up messages as they come: memory does not grow with r."""

    def __init__(self, runs: int, dimension: int) -> None:
        self._total, self._weight = np.zeros((runs, dimension)), np.zeros(runs)

    def add(self, messages: Sequence[Message], run_of: Int64, weights: Float64 | None = None) -> None:
        """Take in messages, in client order; message j belongs to run ``run_of[j]`` and counts ``weights[j]`` times."""
        add_messages(messages, run_of, self._total, weights)
        np.add.at(self._weight, run_of, 1.0 if weights is None else weights)

    def add_payload(self, payload: Any, run: int, key: Key, weight: float = 1.0) -> None:
        """Take in the payload of a key, touching only its non-zeros; on WireFormatError all is as it was."""
        codec.accumulate(payload, self._total[run], weight, key=key)
        self._weight[run] += weight

    def mean(self) -> Float64:
        """Return what is added to the params of each run: (runs, p)."""
        return self._total / self._weight[:, None]


def add_messages(messages: Sequence[Message], run_of: Int64, total: Float64, weights: Float64 | None = None) -> None:
    """Add messages, in order, to the totals of their runs: (runs, p); message j ``weights[j]`` times."""
    require_fit(messages, run_of, len(total), total.shape[1], weights)
    kernels = compiled.load("nonzeros")
    if kernels is not None and isinstance(messages, QuantizedBatch):
        width = messages.bucket_size or messages.dimension
        units = np.asarray(messages.norms, np.float64) / messages.levels
        if weights is not None:
            units *= weights[:, None]
        if SPARSE * messages.counts.sum() < messages.signed_levels.size:
            found = messages.nonzeros
            kernels.add(found.ends, found.positions, found.values, units, width, run_of, total)
        else:
            compiled.load("low_precision").add_levels(messages.signed_levels, units, width, run_of, total)
        return
    for at, (message, run) in enumerate(zip(messages, run_of, strict=True)):
        message.add_to(total[run], 1.0 if weights is None else float(weights[at]))


def require_fit(
    messages: Sequence[Message], run_of: Int64, runs: int, dimension: int, weights: Float64 | None = None
) -> None:
    """Raise ConfigError unless each message has the dimension, one of the runs and, where they count, a weight."""
    if isinstance(messages, QuantizedBatch):  # which would make its messages, one after another
        messages.require_whole()
        found = {messages.dimension}
    else:
        found = {message.dimension for message in messages}
    if len(messages) and found != {dimension}:
        raise ConfigError(
            f"messages of dimension={sorted(found)} do not fit params of {dimension}; quantize whole updates"
        )
    if len(run_of) != len(messages) or (weights is not None and len(weights) != len(messages)):
        given = f"{len(run_of)} runs" + ("" if weights is None else f" and {len(weights)} weights")
        raise ConfigError(f"{len(messages)} messages come with {given}; pass one for each message")
    if len(run_of) and not 0 <= run_of.min() <= run_of.max() < runs:
        raise ConfigError(f"run_of has numbers from {run_of.min()} to {run_of.max()}; choose 0..{runs - 1}")
