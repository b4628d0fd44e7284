"""Uplink: from the clients' updates to the sum the server adds up, and the bytes it took.

Line 10 of Algorithm 1 (quantize, encode) and the sum in line 11.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpaq import codec, compiled
from fedpaq.clients import LocalWork
from fedpaq.errors import NonFiniteUpdateError
from fedpaq.quantizers import Message, QuantizedBatch, Quantizer

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Uplink:
    """Carries a round's updates to the server: quantized, encoded, summed in client order."""

    quantizer: Quantizer

    def send(self, updates: Any, work: LocalWork, total: Float64) -> Int64:
        """Add each job's message to ``total[run]`` (runs, p); return each job's payload bytes.

        A run with a non-finite update gets a total of NaN: it has diverged.
        """
        try:
            messages = self.quantizer.quantize_batch(updates, work.keys())
        except NonFiniteUpdateError:
            updates = np.array(updates, np.float32)
            bad = unusable(updates)
            total[np.unique(work.run_of[bad])] = np.nan
            updates[bad] = 0.0
            messages = self.quantizer.quantize_batch(updates, work.keys())
        add_messages(messages, work.run_of, total)
        return np.array([len(payload) for payload in codec.encode_batch(messages)], np.int64)


def add_messages(messages: Sequence[Message], run_of: Int64, total: Float64) -> None:
    """Add messages, in order, to the totals of their runs: (runs, p)."""
    kernels = compiled.load("low_precision")
    if kernels is not None and isinstance(messages, QuantizedBatch):
        width = messages.bucket_size or max(total.shape[1], 1)
        units = np.asarray(messages.norms, np.float64) / messages.levels
        kernels.add_levels(messages.signed_levels, units, width, run_of, total)
        return
    for message, run in zip(messages, run_of, strict=True):
        message.add_to(total[run])


def unusable(updates: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
    """Return which rows hold NaN or infinity, or have a norm beyond float32."""
    with np.errstate(invalid="ignore", over="ignore"):
        norms = np.sqrt(np.square(updates, dtype=np.float64).sum(axis=1)).astype(np.float32)
    return np.asarray(~np.isfinite(norms))
