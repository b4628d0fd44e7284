"""Uplink: from the clients' updates to the messages that reach the server, and the bytes it took.

Line 10 of Algorithm 1: quantize, encode, send.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpaq import codec
from fedpaq.aggregation import Arrivals
from fedpaq.clients import LocalWork
from fedpaq.errors import NonFiniteUpdateError
from fedpaq.quantizers import Quantizer, RawMessage

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Uplink:
    """Carries a round's updates to the server: quantized, encoded, in client order."""

    quantizer: Quantizer

    def send(self, updates: Any, work: LocalWork, arrived: Arrivals) -> Int64:
        """Hand each job's message to ``arrived``; return each job's payload bytes.

        A run with a non-finite update has diverged: it gets a message of NaN.
        """
        try:
            messages = self.quantizer.quantize_batch(updates, work.keys())
        except NonFiniteUpdateError:
            updates = np.array(updates, np.float32)
            bad = unusable(updates)
            diverged = np.unique(work.run_of[bad])
            arrived.add([RawMessage(np.full(updates.shape[1], np.nan, np.float32))] * len(diverged), diverged)
            updates[bad] = 0.0
            messages = self.quantizer.quantize_batch(updates, work.keys())
        arrived.add(messages, work.run_of)
        return np.array([len(payload) for payload in codec.encode_batch(messages)], np.int64)


def unusable(updates: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
    """Return which rows hold NaN or infinity, or have a norm beyond float32."""
    with np.errstate(invalid="ignore", over="ignore"):
        norms = np.sqrt(np.square(updates, dtype=np.float64).sum(axis=1)).astype(np.float32)
    return np.asarray(~np.isfinite(norms))
