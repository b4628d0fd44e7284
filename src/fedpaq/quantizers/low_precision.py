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

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpaq.arrays import Float32, Float64
from fedpaq.config import require_int
from fedpaq.kernels import numba as compiled
from fedpaq.quantizers.message import QuantizedBatch, QuantizedMessage, level_dtype, num_buckets, require_levels
from fedpaq.quantizers.nonzeros import compact_rows
from fedpaq.quantizers.update import as_float32, as_vector, refuse_non_finite, require_a_key_each
from fedpaq.randomness import Key, Keys, Purpose, halves_numpy

NORM_CHUNK = 65_536
LANES = 256


def sum_of_squares_numpy(vector: Float32) -> float:
    """Sum the squares in the pinned order; the slow twin of the compiled sum."""
    total = 0.0
    for start in range(0, vector.size, NORM_CHUNK):
        total += sum_in_lanes(vector[start : start + NORM_CHUNK].astype(np.float64) ** 2)
    return total


def sum_in_lanes(values: Float64) -> float:
    """Sum by 256 lanes that each run down the values and are then halved (256, 128, ... 1)."""
    padded = np.zeros(-(-values.size // LANES) * LANES)
    padded[: values.size] = values
    lanes = np.zeros(LANES)
    for row in padded.reshape(-1, LANES):
        lanes += row
    while lanes.size > 1:
        lanes = lanes[: lanes.size // 2] + lanes[lanes.size // 2 :]
    return float(lanes[0])


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
        require_levels(self.levels, self.bucket_size)
        object.__setattr__(self, "levels", int(self.levels))  # a NumPy integer would overflow when squared
        if self.bucket_size is not None:
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

    def accepts(self, header: Any) -> bool:
        """Return whether a payload with this header can come from here."""
        return bool((header.levels, header.bucket_size) == (self.levels, self.bucket_size))

    def quantize(self, update: Any, *, key: Key) -> QuantizedMessage:
        """Quantize one update, a (p,) float32 array or tensor."""
        return self.quantize_batch(as_vector(update)[None, :], [key])[0]

    def quantize_batch(self, updates: Any, keys: Keys | Sequence[Key]) -> QuantizedBatch:
        """Quantize r updates (r, p) with their keys; equal, to the bit, to one by one."""
        rows, keys = as_float32(updates), Keys.of(keys)  # (r, p)
        require_a_key_each(rows, keys)
        dimension, nonzeros = rows.shape[1], None
        norms = np.empty((len(rows), num_buckets(dimension, self.bucket_size)), np.float32)
        signed = np.empty(rows.shape, level_dtype(self.levels))
        kernels = compiled.load("low_precision")
        if kernels is None:
            for row, key in enumerate(keys):
                message = quantize_numpy(rows[row], key, self.levels, self.bucket_size)
                signed[row], norms[row] = message.signed_levels, message.norms
        else:
            room = self._room_for_nonzeros(dimension)
            positions, values = np.empty((len(rows), room), np.int64), np.empty((len(rows), room), np.int16)
            counts = np.empty(len(rows), np.int64)
            width = self.bucket_size or max(dimension, 1)
            drawn = keys.seeds, keys.rounds, keys.clients
            kernels.quantize(rows, *drawn, self.levels, width, norms, signed, positions, values, counts)
            if room and (counts >= 0).all():
                nonzeros = compact_rows(signed, counts, positions, values)
        refuse_non_finite(norms, rows, keys)
        signed.flags.writeable = False  # a message is data: its non-zeros stay true
        return QuantizedBatch(signed, norms, self.levels, self.bucket_size, known_nonzeros=nonzeros)

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
