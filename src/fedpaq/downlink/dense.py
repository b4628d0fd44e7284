"""Dense: the whole model as float32, to every participant in every round. The paper's way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpaq import codec

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Dense:
    """Send x_k as it is.

    >>> Dense().open(runs=1, num_clients=50, dimension=785).send(0, np.arange(1), np.zeros((1, 2), np.int64))
    array([[3149, 3149]])
    """

    @property
    def name(self) -> str:
        """Label for history and tables."""
        return "dense"

    def open(self, runs: int, num_clients: int, dimension: int) -> DenseBroadcast:
        """Return the downloads of that many runs; there is nothing to remember."""
        return DenseBroadcast(codec.raw_bytes(dimension))


@dataclass(frozen=True)
class DenseBroadcast:
    """Counts a raw payload for each participant."""

    model_bytes: int

    def send(self, round: int, runs: Int64, participants: Int64) -> Int64:
        """Return the bytes that each of the participants (runs, r) received (runs, r)."""
        return np.full(participants.shape, self.model_bytes, np.int64)

    def adopt(self, runs: Int64, params: Float32, mean: Any) -> Float32:
        """Return x_k + mean, added in double precision and rounded to float32."""
        with np.errstate(over="ignore", invalid="ignore"):  # a diverged run is noticed by its recorder
            return np.asarray(params + mean, np.float32)
