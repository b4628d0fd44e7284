"""Messages: what a quantizer makes of an update, and what the codec carries.

A ``QuantizedMessage`` stands for  norm[bucket(i)] / levels * signed_levels[i];
a ``RawMessage`` stands for its float32 values. Both are plain data: no key, no client.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from fedpaq.quantizers.nonzeros import Nonzeros, collect, count

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]

MAX_LEVELS = 32767  # a signed level fits 16 bits
MAX_BUCKET_SIZE = 2**62  # and everything made of it 64
CHUNK = 16_384  # coordinates dequantized at a time


def level_dtype(levels: int) -> type[np.signedinteger[Any]]:
    """Return the narrowest type for signed levels -levels..levels."""
    return np.int8 if levels <= 127 else np.int16


def num_buckets(dimension: int, bucket_size: int | None) -> int:
    """Return how many norms a message of this dimension carries (the last bucket may be short)."""
    return 1 if bucket_size is None else -(-dimension // bucket_size)


@dataclass(frozen=True, eq=False)
class QuantizedMessage:
    """Signed levels and the norms that scale them (one, or one per bucket)."""

    signed_levels: npt.NDArray[Any]  # (p,) int8 or int16, see level_dtype
    norms: Float32  # (1,) or (ceil(p / bucket_size),)
    levels: int  # s
    bucket_size: int | None = None

    @property
    def dimension(self) -> int:
        """p."""
        return int(self.signed_levels.size)

    def units(self) -> Float64:
        """Return the value of one level in each bucket: norm / s, in double precision."""
        return np.asarray(self.norms, np.float64) / self.levels

    def dequantize(self) -> Float32:
        """Return the estimate of the update, (p,) float32."""
        units, out = self.units(), np.empty(self.dimension, np.float32)
        unit: Any = units[:1]
        for start in range(0, self.dimension, CHUNK):  # doubles for a chunk at a time stay in cache
            part = slice(start, min(start + CHUNK, self.dimension))
            if self.bucket_size is not None:
                unit = units[np.arange(part.start, part.stop) // self.bucket_size]
            out[part] = self.signed_levels[part] * unit
        return out

    def add_to(self, total: Float64, weight: float = 1.0) -> None:
        """Add weight * (this message) to ``total``, touching only non-zeros."""
        at = np.flatnonzero(self.signed_levels)
        units = self.units() * weight
        unit = units[0] if self.bucket_size is None else units[at // self.bucket_size]
        total[at] += self.signed_levels[at] * unit

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, QuantizedMessage)
            and self.levels == other.levels
            and self.bucket_size == other.bucket_size
            and np.array_equal(self.norms.view(np.uint32), other.norms.view(np.uint32))
            and np.array_equal(self.signed_levels, other.signed_levels)
        )


@dataclass(frozen=True, eq=False)
class RawMessage:
    """An update sent as it is."""

    values: Float32  # (p,)

    @property
    def dimension(self) -> int:
        """p."""
        return int(self.values.size)

    def dequantize(self) -> Float32:
        """Return the update itself."""
        return self.values

    def add_to(self, total: Float64, weight: float = 1.0) -> None:
        """Add weight * (this message) to ``total``."""
        total += self.values if weight == 1.0 else weight * self.values.astype(np.float64)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RawMessage) and np.array_equal(
            self.values.view(np.uint32), other.values.view(np.uint32)
        )


Message = QuantizedMessage | RawMessage


@dataclass(frozen=True, eq=False)
class QuantizedBatch(Sequence[QuantizedMessage]):
    """The messages of several clients as two arrays; indexing gives each as a view."""

    signed_levels: npt.NDArray[Any]  # (r, p)
    norms: Float32  # (r, buckets)
    levels: int
    bucket_size: int | None = None

    def __post_init__(self) -> None:
        # Kernels take rows that lie one after the other, and none that are read-only.
        object.__setattr__(self, "signed_levels", np.require(self.signed_levels, requirements=["C", "W"]))

    @property
    def dimension(self) -> int:
        """p."""
        return int(self.signed_levels.shape[1])

    @cached_property
    def counts(self) -> npt.NDArray[np.int64]:
        """The number of non-zeros of each message."""
        return count(self.signed_levels)

    @cached_property
    def nonzeros(self) -> Nonzeros:
        """The non-zeros of each message: looked for once, then added and encoded."""
        return collect(self.signed_levels, self.counts)

    def __len__(self) -> int:
        return len(self.signed_levels)

    @overload
    def __getitem__(self, at: int) -> QuantizedMessage: ...
    @overload
    def __getitem__(self, at: slice | npt.NDArray[np.int64]) -> QuantizedBatch: ...
    def __getitem__(self, at: int | slice | npt.NDArray[np.int64]) -> QuantizedMessage | QuantizedBatch:
        kind = QuantizedBatch if isinstance(at, slice | np.ndarray) else QuantizedMessage
        return kind(self.signed_levels[at], self.norms[at], self.levels, self.bucket_size)
