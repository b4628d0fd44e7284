"""DOWNLINK: how the server's model reaches the participants, and what that takes. Line 3 of Algorithm 1.

A downlink also says what the server's next model is (line 11), since a server that sends less than its whole
model must itself adopt what it sends: then every holder of round k has the server's x_k to the bit.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fedpaq.downlink.dense import Dense

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]


class Broadcast(Protocol):
    """The downloads of some runs, from their first round on."""

    def send(self, round: int, runs: Int64, participants: Int64) -> Int64:
        """Send x_k to the participants (runs, r) of the given runs; return the bytes each received (runs, r)."""

    def adopt(self, runs: Int64, params: Float32, mean: Any) -> Float32:
        """Return x_{k+1} of the given runs from x_k (runs, p) and the mean of the uploads (runs, p)."""


class Downlink(Protocol):
    """A way to send the model."""

    @property
    def name(self) -> str:
        """Label for history and tables."""

    def open(self, runs: int, num_clients: int, dimension: int) -> Broadcast:
        """Return the downloads of that many runs, before their first round."""


__all__ = ["Broadcast", "Dense", "Downlink"]
