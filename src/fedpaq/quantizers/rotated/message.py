"""RotatedMessage: small signed levels in rotated space, one scale a block, and the key that turns them back.

It stands for  x_hat_b = scale_b W^T level_b  in each block b. Scales are doubles of few mantissa bits: they are
rounded at random, so that few bits are enough and the mean stays.
"""

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from fedpaq.arrays import Float32, Float64, Int16, Int64
from fedpaq.errors import ConfigError
from fedpaq.kernels import numba as compiled
from fedpaq.quantizers.message import RawMessage
from fedpaq.quantizers.rotated.rotation import Blocks, rotate_back_numpy
from fedpaq.randomness import Key, Purpose, words

MOST_MANTISSA_BITS = 20
LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, eq=False)
class RotatedMessage:
    """Signed levels (blocks * n,) and scales (blocks,), 0 where a block is all zeros."""

    code: ClassVar[str] = "rotated"

    blocks: Blocks
    signed_levels: Int16
    scales: Float64
    mantissa_bits: int
    levels: int  # the largest magnitude
    nonzeros: int
    key: Key | None  # whose rotation; a receiver that does not say reads levels only
    content: bytes | None = field(default=None, repr=False)  # its bytes on the wire, where known

    def __post_init__(self) -> None:
        if (self.signed_levels.shape, self.scales.shape) != ((self.blocks.padded,), (self.blocks.count,)):
            raise ConfigError(
                f"message.signed_levels of shape={self.signed_levels.shape} and scales of shape={self.scales.shape} "
                f"do not fit {self.blocks}; pass ({self.blocks.padded},) and ({self.blocks.count},)"
            )

    @property
    def dimension(self) -> int:
        """p."""
        return self.blocks.dimension

    def dequantize(self) -> Float32:
        """Return the estimate of the update, (p,) float32."""
        if self.key is None:
            raise ConfigError("key=None: a payload does not carry its rotation; decode it with key=Key(...)")
        kernels = compiled.load("rotation")
        if kernels is None:
            return rotate_back_numpy(self.signed_levels, self.blocks, self.scales, self.key)
        out = np.empty(self.dimension, np.float32)
        key = (self.key.seed, self.key.round, self.key.client)
        shape = (self.blocks.length, self.blocks.size, self.blocks.turns)
        kernels.rotate_back(self.signed_levels, *shape, self.scales, *key, out)
        return out

    def add_to(self, total: Float64, weight: float = 1.0) -> None:
        """Add weight * (this message) to ``total``."""
        RawMessage(self.dequantize()).add_to(total, weight)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, RotatedMessage)
            and (self.blocks, self.mantissa_bits, self.key) == (other.blocks, other.mantissa_bits, other.key)
            and np.array_equal(self.scales, other.scales)
            and np.array_equal(self.signed_levels, other.signed_levels)
        )


def scale_index(scales: Float64, mantissa_bits: int) -> Int64:
    """Return scales of so few mantissa bits as integers: exponent and mantissa, as they lie in a double.

    >>> scale_index(np.array([1.0, 1.25]), 2)
    array([4092, 4093])
    """
    return scales.view(np.int64) >> (52 - mantissa_bits)


def scale_of(index: Int64, mantissa_bits: int) -> Float64:
    """Undo ``scale_index``."""
    return (index << (52 - mantissa_bits)).view(np.float64)


def round_scales(scales: Float64, mantissa_bits: int, key: Key | None) -> Float64:
    """Round to few mantissa bits, up with the probability that keeps the mean; without key to the nearest."""
    dropped = 52 - mantissa_bits
    bits = scales.view(np.int64)
    rest = (bits & ((1 << dropped) - 1)) >> (dropped - 32)
    up = (2**31 if key is None else words(Purpose.SCALE, key, scales.size)) < rest
    return scale_of((bits >> dropped) + up, mantissa_bits)


def largest_estimate(message: RotatedMessage) -> float:
    """Return a bound on every |x_hat_i|: no block's estimate has a norm above scale ||W|| ||level||."""
    norm = message.levels * math.sqrt(message.nonzeros)
    return float(message.scales.max()) * message.blocks.growth * norm


def zero_message(blocks: Blocks, key: Key | None) -> RotatedMessage:
    """Return the message of an update that is all zeros, in one block."""
    return RotatedMessage(blocks, np.zeros(blocks.padded, np.int16), np.zeros(1), 2, 0, 0, key)
