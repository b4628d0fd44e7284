"""Messages: what a quantizer makes of an update, and what the codec carries.

A message is anything with the members of ``Message``: plain data, without key or client. Two kinds stand here:
a ``QuantizedMessage`` means  norm[bucket(i)] / levels * signed_levels[i],  a ``RawMessage`` its float32 values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Protocol, overload

import numpy as np

from fedpaq.arrays import AnyArray, Float32, Float64, Int64
from fedpaq.config import require_int
from fedpaq.errors import ConfigError
from fedpaq.quantizers.nonzeros import Nonzeros, collect, count

MAX_LEVELS = 32767  # a signed level fits 16 bits
MAX_BUCKET_SIZE = 2**62  # and everything made of it 64
CHUNK = 16_384  # coordinates dequantized at a time


def level_dtype(levels: int) -> type[np.signedinteger[Any]]:
    """Return the narrowest type for signed levels -levels..levels."""
    return np.int8 if levels <= 127 else np.int16


def num_buckets(dimension: int, bucket_size: int | None) -> int:
    """Return how many norms a message of this dimension carries (the last bucket may be short)."""
    return 1 if bucket_size is None else -(-dimension // bucket_size)


def require_levels(levels: int, bucket_size: int | None) -> None:
    """Raise ConfigError unless a message can have so many levels and buckets of this size."""
    require_int("levels", levels, 1, MAX_LEVELS)
    if bucket_size is not None:
        require_int("bucket_size", bucket_size, 1, MAX_BUCKET_SIZE)


def require_total(total: Any, dimension: int) -> None:
    """Raise ConfigError unless a message of this dimension can be added to ``total``."""
    if not isinstance(total, np.ndarray) or total.dtype != np.float64 or total.ndim != 1:
        raise ConfigError("total is not a float64 vector; pass np.zeros(dimension)")
    if not total.flags.writeable:
        raise ConfigError("total is read-only; pass np.zeros(dimension)")
    if total.size != dimension:
        raise ConfigError(
            f"total of {total.size} does not fit a message of dimension={dimension}; pass np.zeros({dimension})"
        )


class Message(Protocol):
    """What a quantizer makes of one update."""

    @property
    def code(self) -> str:
        """The name of its wire code: ``raw``, ``levels``, or that of a registered quantizer."""

    @property
    def dimension(self) -> int:
        """p."""

    def dequantize(self) -> Float32:
        """Return the estimate of the update, (p,) float32."""

    def add_to(self, total: Float64, weight: float = 1.0) -> None:
        """Add weight * (this message) to ``total`` (p,)."""


@dataclass(frozen=True, eq=False)
class QuantizedMessage:
    """Signed levels and the norms that scale them (one, or one per bucket).

    Where its maker knows the ``nonzeros`` of these very ``signed_levels``, the codec does not search for them.
    """

    code: ClassVar[str] = "levels"

    signed_levels: AnyArray  # (p,) int8 or int16, see level_dtype
    norms: Float32  # (1,) or (ceil(p / bucket_size),)
    levels: int  # s
    bucket_size: int | None = None
    nonzeros: Nonzeros | None = field(default=None, repr=False, kw_only=True)

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
        require_total(total, self.dimension)
        at = np.flatnonzero(self.signed_levels)
        units = self.units() * weight
        unit = units[0] if self.bucket_size is None else units[at // self.bucket_size]
        total[at] += self.signed_levels[at] * unit

    def __getstate__(self) -> dict[str, Any]:
        return _without_nonzeros(self)

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

    code: ClassVar[str] = "raw"

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
        require_total(total, self.dimension)
        total += self.values if weight == 1.0 else weight * self.values.astype(np.float64)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RawMessage) and np.array_equal(
            self.values.view(np.uint32), other.values.view(np.uint32)
        )


@dataclass(frozen=True, eq=False)
class QuantizedBatch(Sequence[QuantizedMessage]):
    """The messages of several clients as two arrays; indexing gives each as a view.

    Its maker may know the non-zeros of these very ``signed_levels``.
    """

    code: ClassVar[str] = "levels"

    signed_levels: AnyArray  # (r, p), rows one after the other: what kernels take
    norms: Float32  # (r, buckets)
    levels: int
    bucket_size: int | None = None
    known_nonzeros: Nonzeros | None = field(default=None, repr=False, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "signed_levels", np.require(self.signed_levels, requirements=["C", "A"]))

    @classmethod
    def stack(cls, messages: Sequence[QuantizedMessage]) -> QuantizedBatch:
        """Return messages of one shape as a batch; a single one without a copy."""
        first = messages[0]
        if len(messages) > 1:
            rows = np.stack([message.signed_levels for message in messages])
            return cls(rows, np.stack([message.norms for message in messages]), first.levels, first.bucket_size)
        rows, norms = first.signed_levels[None], np.asarray(first.norms)[None]
        known = _known(first.nonzeros, first.signed_levels)
        nonzeros = None if known is None else replace(known, levels=rows)
        return cls(rows, norms, first.levels, first.bucket_size, known_nonzeros=nonzeros)

    def __getstate__(self) -> dict[str, Any]:
        return _without_nonzeros(self)

    def require_whole(self) -> None:
        """Raise ConfigError unless all parts fit each other, as kernels rely on."""
        rows = self.signed_levels
        require_levels(self.levels, self.bucket_size)
        if rows.ndim != 2 or rows.dtype.kind not in "iu":
            raise ConfigError(
                f"message.signed_levels of shape={rows.shape[1:]}, dtype={rows.dtype} is not a vector of integers; "
                "pass (p,) of int8 or int16"
            )
        require_int("dimension", self.dimension, 1)
        expected = num_buckets(self.dimension, self.bucket_size)
        if self.norms.shape != (len(self), expected):
            raise ConfigError(f"message.norms is not {expected} finite, non-negative numbers")

    @property
    def dimension(self) -> int:
        """p."""
        return int(self.signed_levels.shape[1])

    @cached_property
    def counts(self) -> Int64:
        """The number of non-zeros of each message."""
        known = _known(self.known_nonzeros, self.signed_levels)
        return count(self.signed_levels) if known is None else known.ends[1:] - known.ends[:-1]

    @cached_property
    def nonzeros(self) -> Nonzeros:
        """The non-zeros of each message: looked for at most once, then added and encoded."""
        return _known(self.known_nonzeros, self.signed_levels) or collect(self.signed_levels, self.counts)

    def __len__(self) -> int:
        return len(self.signed_levels)

    @overload
    def __getitem__(self, at: int) -> QuantizedMessage: ...
    @overload
    def __getitem__(self, at: slice | Int64) -> QuantizedBatch: ...
    def __getitem__(self, at: int | slice | Int64) -> QuantizedMessage | QuantizedBatch:
        rows, others = self.signed_levels[at], (self.norms[at], self.levels, self.bucket_size)
        if not isinstance(at, int | np.integer):
            return QuantizedBatch(rows, *others)
        known = _known(self.known_nonzeros, self.signed_levels)
        return QuantizedMessage(rows, *others, nonzeros=None if known is None else known.of(int(at), rows))


def _known(nonzeros: Nonzeros | None, levels: AnyArray) -> Nonzeros | None:
    """Return non-zeros that are of these very levels; ``dataclasses.replace`` may have given others."""
    return nonzeros if nonzeros is not None and nonzeros.levels is levels else None


def _without_nonzeros(levels: QuantizedMessage | QuantizedBatch) -> dict[str, Any]:
    """Return what a copy or a pickle takes along: the copy's levels are its own to change."""
    return {name: vars(levels)[name] for name in ("signed_levels", "norms", "levels", "bucket_size")}
