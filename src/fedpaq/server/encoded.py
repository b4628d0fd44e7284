"""Encoded: updates are quantized, encoded and handed to the server's aggregation in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpaq import codec
from fedpaq.arrays import Float32, Float64, Int64
from fedpaq.clients.work import LocalWork, whole
from fedpaq.errors import NonFiniteUpdateError
from fedpaq.quantizers import Key, Message, Quantizer, RawMessage
from fedpaq.quantizers.check import quantize_all
from fedpaq.quantizers.update import as_float32
from fedpaq.server.aggregation import Aggregation, RoundAccumulator
from fedpaq.server.device_batch import device_batch
from fedpaq.server.mean import MeanAccumulator


@dataclass(frozen=True)
class Encoded:
    """Every message becomes a real payload, whose length is counted."""

    quantizer: Quantizer
    aggregation: Aggregation
    weights: Callable[[Int64], Int64] | None = None  # of clients, where the mean is weighted
    payload_size_source: str = "encoded"
    share = staticmethod(whole)  # all jobs are done here

    def open(self, runs: int, dimension: int) -> EncodedInbox:
        """Return an empty inbox for one round."""
        return EncodedInbox(self, self.aggregation.start(runs, dimension), runs)


class EncodedInbox:
    """One round of every run."""

    def __init__(self, uplink: Encoded, accumulator: RoundAccumulator, runs: int) -> None:
        self._uplink, self._accumulator = uplink, accumulator
        self._payload_bytes = np.zeros(runs, np.int64)

    def add(self, updates: Any, work: LocalWork) -> None:
        """Take the updates (jobs, p) of some work; a run with a non-finite update gets a message of NaN."""
        messages, diverged = quantize_or_mark_diverged(self._uplink.quantizer, updates, work)
        add_diverged(self._accumulator, diverged, updates.shape[1])
        if self._uplink.weights is not None and isinstance(self._accumulator, MeanAccumulator):
            self._accumulator.add(messages, work.run_of, self._uplink.weights(work.clients).astype(np.float64))
        else:
            self._accumulator.add(messages, work.run_of)
        np.add.at(self._payload_bytes, work.run_of, codec.measure_batch(messages))

    def finish(self) -> tuple[Float64, Int64]:
        """Return what is added to the params of each run (runs, p), and its payload bytes (runs,)."""
        return self._accumulator.mean(), self._payload_bytes


def add_diverged(accumulator: RoundAccumulator, diverged: Int64, dimension: int) -> None:
    """Add a message of NaN to each diverged run, so that its params say so."""
    if diverged.size:
        nothing = RawMessage(np.full(dimension, np.nan, np.float32))
        accumulator.add([nothing] * len(diverged), diverged)


def quantize_or_mark_diverged(quantizer: Quantizer, updates: Any, work: LocalWork) -> tuple[Sequence[Message], Int64]:
    """Return the messages, of zeros where an update is not finite, and the runs diverged by such updates."""
    on_device = device_batch(quantizer, updates, work)
    if on_device is not None:
        messages, usable = on_device.fetch()
        return messages, np.unique(work.run_of[~usable])
    keys = work.keys()
    try:
        return quantize_all(quantizer, updates, keys), np.zeros(0, np.int64)
    except NonFiniteUpdateError:
        rows = as_float32(updates).copy()
        bad = np.array([is_rejected(quantizer, row, key) for row, key in zip(rows, keys, strict=True)])
        rows[bad] = 0.0
        return quantize_all(quantizer, rows, keys), np.unique(work.run_of[bad])


def is_rejected(quantizer: Quantizer, update: Float32, key: Key) -> bool:
    """Return whether the quantizer rejects an update; the error of a batch names only the first."""
    try:
        quantizer.quantize(update, key=key)
    except NonFiniteUpdateError:
        return True
    return False
