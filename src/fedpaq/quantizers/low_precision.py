"""LowPrecision: Example 1 of the paper (the QSGD quantizer).

    Q_i(x) = ||x|| * sign(x_i) * xi_i,   xi_i = (l + 1) / s with probability |x_i| s / ||x|| - l,
                                         xi_i =  l      / s otherwise,   l = floor(|x_i| s / ||x||).

With u_i uniform on [0, 1) that is  level_i = floor(|x_i| s / ||x|| + u_i): one draw, one floor.

Every step is pinned so that NumPy, numba and Triton agree to the bit:

* Squares of float32 are exact in float64. They are summed in chunks of 65,536 coordinates: 256
  lanes each run down the chunk, the lanes are halved (256, 128, ... 1), the chunks are added in order.
* The norm is rounded to float32 (it travels) and that same float32 scales the levels, so the
  quantizer stays unbiased. Rounding is monotone, hence norm >= max |x_i| and no level exceeds s.
* u_i = (h_i + l_i 2^-16) 2^-16, h_i being half-word i of the stream (seed, DITHER, round, client) and l_i
  that of DITHER_LOW. A level depends on l_i once in 65,536 times: the kernels draw it only then.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpaq.config import require_int
from fedpaq.errors import ConfigError, NonFiniteUpdateError
from fedpaq.kernels import numba as compiled
from fedpaq.quantizers.message import (
    MAX_BUCKET_SIZE,
    MAX_LEVELS,
    Float32,
    Float64,
    QuantizedBatch,
    QuantizedMessage,
    level_dtype,
    num_buckets,
)
from fedpaq.quantizers.nonzeros import joined
from fedpaq.randomness import Key, Purpose, halves_numpy

NORM_CHUNK = 65_536
NORM_LANES = 256


def sum_of_squares_numpy(vector: Float32) -> float:
    """Sum the squares in the pinned order; the slow twin of the compiled sum."""
    total = 0.0
    for start in range(0, vector.size, NORM_CHUNK):
        squares = vector[start : start + NORM_CHUNK].astype(np.float64) ** 2
        rows = -(-squares.size // NORM_LANES)
        padded = np.zeros(rows * NORM_LANES)
        padded[: squares.size] = squares
        lanes = np.zeros(NORM_LANES)
        for row in padded.reshape(rows, NORM_LANES):
            lanes += row
        while lanes.size > 1:
            lanes = lanes[: lanes.size // 2] + lanes[lanes.size // 2 :]
        total += float(lanes[0])
    return total


def quantize_numpy(update: Float32, key: Key, levels: int, bucket_size: int | None) -> QuantizedMessage:
    """Quantize one update; the slow twin of the compiled kernel, and the version to read."""
    dimension = update.size
    width = bucket_size or max(dimension, 1)
    norms = np.zeros(num_buckets(dimension, bucket_size), np.float32)
    scaled = np.zeros(dimension)
    for bucket in range(norms.size):
        part = slice(bucket * width, (bucket + 1) * width)
        with np.errstate(over="ignore"):
            norms[bucket] = math.sqrt(sum_of_squares_numpy(update[part]))
        if 0 < norms[bucket] < np.inf:
            scaled[part] = np.abs(update[part]).astype(np.float64) * (levels / float(norms[bucket]))
    high, low = (halves_numpy(purpose, key, dimension) for purpose in (Purpose.DITHER, Purpose.DITHER_LOW))
    dither = (high * 2.0**16 + low) * 2.0**-32
    magnitude = np.minimum(np.floor(scaled + dither), levels)
    signed = np.copysign(magnitude, update).astype(level_dtype(levels))
    return QuantizedMessage(signed, norms, levels, bucket_size)


@dataclass(frozen=True)
class LowPrecision:
    """Stochastic rounding to ``levels`` [s] multiples of the l2 norm (Example 1 of the paper).

    With ``bucket_size`` each run of that many coordinates has its own norm, as QSGD does in
    practice: lower variance, more bytes.

    >>> quantizer = LowPrecision(levels=1)
    >>> message = quantizer.quantize(np.array([3.0, -4.0], np.float32), key=Key(seed=0))
    >>> message.norms, message.levels
    (array([5.], dtype=float32), 1)
    """

    levels: int
    bucket_size: int | None = None

    def __post_init__(self) -> None:
        require_int("levels", self.levels, 1, MAX_LEVELS)
        object.__setattr__(self, "levels", int(self.levels))  # a NumPy integer would overflow when squared
        if self.bucket_size is not None:
            require_int("bucket_size", self.bucket_size, 1, MAX_BUCKET_SIZE)
            object.__setattr__(self, "bucket_size", int(self.bucket_size))

    @property
    def name(self) -> str:
        """Short label for tables and reports."""
        bucket = "" if self.bucket_size is None else f", bucket={self.bucket_size}"
        return f"low-precision(s={self.levels}{bucket})"

    def variance_bound(self, dimension: int) -> float:
        """Return q with E||Q(x) - x||^2 <= q ||x||^2: min(p / s^2, sqrt(p) / s), p at most a bucket.

        >>> LowPrecision(levels=1).variance_bound(100)
        10.0
        """
        require_int("dimension", dimension, 1)
        p = dimension if self.bucket_size is None else min(dimension, self.bucket_size)
        return min(p / self.levels**2, math.sqrt(p) / self.levels)

    def quantize(self, update: Any, *, key: Key) -> QuantizedMessage:
        """Quantize one update, a (p,) float32 array or tensor."""
        vector = as_float32(update)
        if vector.ndim != 1:
            raise ConfigError(f"update.shape={vector.shape} is not a vector; flatten it to (p,)")
        return self.quantize_batch(vector[None, :], [key])[0]

    def quantize_batch(self, updates: Any, keys: Sequence[Key]) -> QuantizedBatch:
        """Quantize r updates (r, p) with their keys; equal, to the bit, to one by one."""
        rows = as_float32(updates)  # (r, p)
        if rows.ndim != 2 or len(rows) != len(keys):
            raise ConfigError(f"updates.shape={rows.shape} does not match the {len(keys)} keys; pass (r, p)")
        return self._quantize_rows(rows, keys)

    def _quantize_rows(self, rows: Float32, keys: Sequence[Key]) -> QuantizedBatch:
        dimension = rows.shape[1]
        norms = np.empty((len(rows), num_buckets(dimension, self.bucket_size)), np.float32)
        signed = np.empty(rows.shape, level_dtype(self.levels))
        batch = QuantizedBatch(signed, norms, self.levels, self.bucket_size)
        nonzeros = None
        kernels = compiled.load("low_precision")
        if kernels is None:
            for row, key in enumerate(keys):
                message = quantize_numpy(rows[row], key, self.levels, self.bucket_size)
                signed[row], norms[row] = message.signed_levels, message.norms
        else:
            seeds = np.array([key.seed for key in keys], np.uint64)
            rounds = np.array([key.round for key in keys], np.int64)
            clients = np.array([key.client for key in keys], np.int64)
            room = self._room_for_nonzeros(dimension)
            positions, values = np.empty((len(rows), room), np.int64), np.empty((len(rows), room), np.int16)
            counts = np.empty(len(rows), np.int64)
            width = self.bucket_size or max(dimension, 1)
            kernels.quantize(
                rows, seeds, rounds, clients, self.levels, width, norms, signed, positions, values, counts
            )
            if room and (counts >= 0).all():
                nonzeros = joined(counts, positions, values)
        refuse_non_finite(norms, rows, keys)
        batch.note(nonzeros)
        return batch

    def _room_for_nonzeros(self, dimension: int) -> int:
        """Return room for the non-zeros of a message where they are rare, else 0.

        A bucket has s sqrt(p) of them at most on average, by Cauchy's inequality, and chance adds little.
        """
        width = min(self.bucket_size or dimension, dimension)
        if not rare(self.levels, width):
            return 0
        return 2 * math.ceil(self.levels * math.sqrt(width)) * num_buckets(dimension, self.bucket_size) + 64


def rare(levels: int, width: int) -> bool:
    """Whether, on average, fewer than one coordinate in 32 has a level, whatever the update."""
    return 1024 * levels * levels < width


def as_float32(values: Any) -> Float32:
    """Return a contiguous float32 array of an array or a tensor; itself, if it is one."""
    if type(values) is np.ndarray and values.dtype == np.float32 and values.flags.c_contiguous:
        return np.require(values, requirements=["A"])
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = (values.float() if values.is_floating_point() else values).numpy()  # NumPy has no bfloat16
    array = np.asarray(values)
    if array.dtype.kind not in "fiu":
        raise ConfigError(f"update.dtype={array.dtype} is not numeric; pass float32")
    with np.errstate(over="ignore"):  # beyond float32 is infinite, which is refused by name
        return np.require(array, np.float32, ["C", "A"])


def refuse_non_finite(norms: Float32 | Float64, rows: Float32, keys: Sequence[Key]) -> None:
    """Raise NonFiniteUpdateError naming the client and the first bad coordinate."""
    finite = np.isfinite(norms)
    if finite.all():
        return
    job = int(finite.all(axis=1).argmin())
    where = np.flatnonzero(~np.isfinite(rows[job]))
    client, round = keys[job].client, keys[job].round
    if where.size:
        raise NonFiniteUpdateError(
            f"update[{int(where[0])}]={rows[job, where[0]]} of client={client} in round={round} "
            "is not finite; lower step_size or clip the update"
        )
    raise NonFiniteUpdateError(
        f"the norm of the update of client={client} in round={round} exceeds float32; lower step_size"
    )
