"""Dense: the whole model as float32, to every participant in every round. The paper's way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedpaq import codec
from fedpaq.arrays import AnyArray, Float32, Int64


@dataclass(frozen=True)
class Dense:
    """Send x_k as it is.

    >>> broadcast = Dense().open([0], num_clients=50, params=np.zeros(785, np.float32))
    >>> broadcast.send(0, np.arange(1), np.zeros((1, 25), np.int64)).sum()
    np.int64(78725)
    """

    name: ClassVar[str] = "dense"

    def open(self, seeds: Sequence[int], num_clients: int, params: Float32) -> DenseBroadcast:
        """Return the downloads of some runs; there is nothing to remember."""
        return DenseBroadcast(np.tile(params, (len(seeds), 1)), codec.raw_bytes(params.size))


@dataclass(frozen=True, eq=False)
class DenseBroadcast:
    """Counts a raw payload for each participant."""

    takes_tensors: ClassVar[bool] = True  # of a GPU, beside arrays

    params: Float32  # x_0: (runs, p)
    model_bytes: int

    def send(self, round: int, runs: Int64, participants: Int64) -> Int64:
        """Return the bytes that each of the participants (runs, r) received."""
        return np.full(participants.shape, self.model_bytes, np.int64)

    def adopt(self, runs: Int64, params: Any, mean: Any) -> Any:
        """Return x_k + mean, added in double precision and rounded to float32, where the mean is."""
        if not isinstance(mean, np.ndarray):
            return (mean.new_tensor(params) + mean if isinstance(params, np.ndarray) else params + mean).float()
        rounded = np.empty(mean.shape, np.float32)  # the sum itself is made in small parts, of which none is kept
        with np.errstate(over="ignore", invalid="ignore"):  # a diverged run is noticed by its recorder
            return np.add(params, mean, out=rounded, dtype=np.float64, casting="same_kind")

    def to_arrays(self) -> dict[str, AnyArray]:
        """Return nothing."""
        return {}

    def take_up(self, params: Float32, arrays: Mapping[str, AnyArray]) -> None:
        """Have nothing to take up."""
