"""Rotated: an unbiased quantizer near the rate-distortion limit, at any rate.

    z = R x,   level = round(z / step),   x_hat = scale R^T level,   scale = ||x||^2 / <z, level>,

block by block. R is a random rotation, so level is some vector of which only its part along z is known: R^T
turns the rest into a random direction, whose mean is zero, and the scale makes the part along x exactly x.
That holds for any rule that makes levels of z. What is decided before the draw (blocks, LowPrecision instead)
is decided from x alone. One choice is by the draw: with ``payload_bytes``, a message of LowPrecision that turns
out too long is sent rotated. The room that ``rival`` leaves makes that rare, and its bias less than 8e-4 ||x||.

A Gaussian z sent by plain rounding costs 1.35 to 1.61 times the least error 1/(4^R - 1) of R bits a coordinate.
For a true rotation the mean is exact; signs and Hadamard matrices are close to one, as docs/theory.md measures.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, ClassVar

import numpy as np

from fedpaq import codec
from fedpaq.arrays import Float32
from fedpaq.codec.frame import frame_bytes
from fedpaq.config import plain_number, require_int
from fedpaq.errors import ConfigError
from fedpaq.quantizers.message import QuantizedMessage
from fedpaq.quantizers.rotated import content
from fedpaq.quantizers.rotated.allocation import SCALE_BITS, allocate, body_bits, variance_bound
from fedpaq.quantizers.rotated.message import RotatedMessage, zero_message
from fedpaq.quantizers.rotated.rival import better_levels
from fedpaq.quantizers.rotated.rotation import Blocks
from fedpaq.quantizers.rotated.rounding import Rounded, sum_cells
from fedpaq.quantizers.rotated.sketch import Sketch
from fedpaq.quantizers.update import as_float32, as_vector, refuse_non_finite, require_a_key_each
from fedpaq.randomness import Key, Keys

MOST_BITS = 12.0
LEAST_BYTES = 24  # of a payload, for dimensions up to 2^21; larger ones take a byte or two more
TRIES = 12
SCALE_ROOM = 0.5  # bytes, times the root of the number of scales


@dataclass(frozen=True)
class Rotated:
    """Round in a random basis: ``bits`` a coordinate on average, or ``payload_bytes`` at most.

    ``blocks`` are as many as make the error least. ``blocks=1`` spreads the error evenly over the coordinates:
    it is larger, but at few bits it harms training less (docs/quantizers.md).

    >>> message = Rotated(bits=0.5).quantize(np.ones(1000, np.float32), key=Key(seed=0))
    >>> message.dequantize().shape
    (1000,)
    """

    wire_code: ClassVar[codec.Code] = content.CODE

    bits: float | None = None
    payload_bytes: int | None = None
    blocks: int | None = None

    def __post_init__(self) -> None:
        if (self.bits is None) == (self.payload_bytes is None):
            raise ConfigError(
                "give either bits= (average bits per coordinate) or payload_bytes= (the longest payload allowed)"
            )
        if self.payload_bytes is not None:
            require_int("payload_bytes", self.payload_bytes, LEAST_BYTES)
            object.__setattr__(self, "payload_bytes", int(self.payload_bytes))
        elif isinstance(self.bits, bool) or not (isinstance(self.bits, Real) and 0 < self.bits <= MOST_BITS):
            raise ConfigError(f"bits={self.bits!r} is out of range; choose more than 0 and at most {MOST_BITS:g}")
        object.__setattr__(self, "bits", plain_number(self.bits))
        if self.blocks is not None:
            require_int("blocks", self.blocks, 1)
            object.__setattr__(self, "blocks", int(self.blocks))

    @property
    def name(self) -> str:
        """Short label for tables and reports."""
        rate = f"{self.bits:g} bits" if self.bits is not None else f"{self.payload_bytes} bytes"
        return f"rotated({rate})" if self.blocks is None else f"rotated({rate}, blocks={self.blocks})"

    def target_bytes(self, dimension: int) -> int:
        """Return the bytes a payload should have."""
        if self.payload_bytes is not None:
            return self.payload_bytes
        assert self.bits is not None
        return max(round(self.bits * dimension / 8), LEAST_BYTES)

    def variance_bound(self, dimension: int) -> float:
        """Return q, with a quarter to spare: even energy, Gaussian when rotated, is the worst update.

        >>> round(Rotated(bits=1.0).variance_bound(10**6), 2)
        0.65
        """
        require_int("dimension", dimension, 1)
        return variance_bound(dimension, self.target_bytes(dimension), self.blocks)

    def accepts(self, header: codec.Header) -> bool:
        """Return whether a payload with this header can come from here: its code and its length."""
        plain = header.levels > 0 and header.bucket_size is None  # LowPrecision, where it is better
        target = self.target_bytes(header.dimension)
        most = target if self.payload_bytes is not None else 1.1 * target + 64
        return header.payload_bytes <= most and (plain or header.code in content.CODE.names)

    def quantize(self, update: Any, *, key: Key) -> RotatedMessage | QuantizedMessage:
        """Quantize one update, a (p,) float32 array or tensor."""
        return self.quantize_batch(as_vector(update)[None, :], [key])[0]

    def quantize_batch(self, updates: Any, keys: Keys | Sequence[Key]) -> list[RotatedMessage | QuantizedMessage]:
        """Quantize r updates (r, p) with their keys; equal, to the bit, to one by one."""
        rows, keys = as_float32(updates), Keys.of(keys)  # (r, p)
        require_a_key_each(rows, keys)
        require_int("dimension", rows.shape[1], 1)
        return [self._quantize_row(row, key) for row, key in zip(rows, keys, strict=True)]

    def approximate(self, update: Any, *, key: Key) -> RotatedMessage:
        """Return a message near one update: without the scale that keeps the mean, with an error below ||x||.

        For a sender that adds what was lost to what it sends next, as a server does with ``fedpaq.Changes``.
        """
        return self._quantize_row(as_float32(as_vector(update)[None, :])[0], key, unbiased=False)  # type: ignore[return-value]

    def _quantize_row(self, row: Float32, key: Key, unbiased: bool = True) -> RotatedMessage | QuantizedMessage:
        squares, magnitudes = sum_cells(row)
        with np.errstate(over="ignore", invalid="ignore"):
            norm = np.sqrt(squares.sum())
            refuse_non_finite(np.float32(norm).reshape(1, 1), row[None], Keys.of([key]))
        if norm == 0:
            return zero_message(Blocks(row.size, 1), key)
        target = self.target_bytes(row.size)
        bits = body_bits(row.size, target)
        plan = allocate(squares, row.size, bits, self.blocks)
        promised = self.payload_bytes is not None
        known = float(norm), float(magnitudes.sum()), target, plan.error
        rival = better_levels(row, *known, promised) if unbiased else None
        if rival is not None:
            message = rival.quantize(row, key=key)
            if self.payload_bytes is None or payload_size(message) <= self.payload_bytes:
                return message
        bits -= SCALE_BITS * (plan.blocks.count - 1)
        sketch = Sketch.of(row, plan, squares, key, unbiased)
        return self._longest_fitting(sketch, bits) if promised else sketch.message(bits)

    def _longest_fitting(self, sketch: Sketch, bits: float) -> RotatedMessage:
        """Return the message of the most bits that fits; any rule on z keeps the mean.

        The length is looked at with scales rounded to the nearest: a choice by the length of scales drawn at
        random would choose among them. Those may take a little more room, which is left.
        """
        assert self.payload_bytes is not None
        best, (most, rounded) = None, self._most_bits(sketch, bits)
        while best is None and most > 0:  # hardly ever twice
            best = with_content(sketch.scaled(rounded or sketch.rounded(most), most))
            if payload_size(best) > self.payload_bytes:
                best, most, rounded = None, 0.98 * most - 8.0, None
        if best is None:
            best = with_content(sketch.shortest())
            if payload_size(best) > self.payload_bytes:
                raise ConfigError(
                    f"payload_bytes={self.payload_bytes} is too few for dimension={best.dimension}; "
                    f"choose at least {payload_size(best)}"
                )
        return best

    def _most_bits(self, sketch: Sketch, bits: float) -> tuple[float, Rounded | None]:
        """Return the bits to round to and what comes of them; 0 if nothing fits."""
        assert self.payload_bytes is not None
        fits, too_many, best = 0.0, math.inf, None
        target = bits - 6.0 - 0.003 * bits
        room = 8.0 * SCALE_ROOM * math.sqrt(sketch.blocks.count - 1)
        for _ in range(TRIES):
            rounded = sketch.rounded(target)
            message = with_content(sketch.scaled(rounded, target, nearest=True))
            spare = 8.0 * (self.payload_bytes - payload_size(message)) - room
            if spare >= 0:
                fits, best = target, rounded
                if spare <= max(8.0, 0.002 * bits):
                    break
                target = min(target + 0.9 * spare, (target + too_many) / 2)
            else:
                too_many = target
                target = max(min(target + 1.1 * spare - 4.0, 0.98 * target), fits)
            if target - fits < 4.0 or target <= 0:
                break
        return fits, best


def with_content(message: RotatedMessage) -> RotatedMessage:
    """Return the message with its bytes on the wire."""
    return replace(message, content=content.encode(message))


def payload_size(message: RotatedMessage | QuantizedMessage) -> int:
    """Return the bytes of a message's payload."""
    if isinstance(message, RotatedMessage):
        assert message.content is not None
        return frame_bytes(message.dimension) + len(message.content)
    return len(codec.encode(message))
