"""Magnitudes: what LowPrecision would make of an update, from a histogram of |x_i| / ||x||.

    E ||Q(x) - x||^2 = (||x|| / s)^2 sum f_i (1 - f_i),   f_i the fraction of |x_i| s / ||x||,

and a message of k non-zeros with mean magnitude m takes about  p h(k / p) + k (1 + g(m - 1))  bits, h being the
entropy of a yes or no and g that of a geometric integer. The histogram has eight bins an octave.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from fedpaq.arrays import Float32, Float64


class Expected:
    """What to expect of LowPrecision at some levels, worked out when asked for: a search asks for little of it."""

    def __init__(self, magnitudes: Magnitudes, levels: int) -> None:
        self._counts, self._levels = magnitudes.counts, levels
        self._scaled = magnitudes.means * levels
        self._whole = np.floor(self._scaled)

    @functools.cached_property
    def error(self) -> float:
        """E||Q(x) - x||^2 / ||x||^2."""
        return float(self._counts @ self._chance) / self._levels**2

    @functools.cached_property
    def bits(self) -> float:
        """The bits of a code that knows densities, but not where they differ."""
        share, excess = self._density
        count, total = self._nonzeros
        return total * binary_entropy(share) + count * (1 + geometric_entropy(excess))

    @functools.cached_property
    def deviation(self) -> float:
        """The standard deviation of the bits."""
        share, excess = self._density
        first = max(math.log2((1 - share) / share), 0.0) + 1 + math.log2(1 + excess)  # a zero made a one
        next = math.log2(1 + 1 / excess) if excess > 0 else 0.0  # a level made one larger
        costs = np.where(self._whole > 0, min(next, first), first)
        return math.sqrt(float(self._counts @ (self._chance * costs**2)))

    @property
    def _chance(self) -> Float64:
        """f (1 - f)."""
        return (self._scaled - self._whole) * (1 - self._scaled + self._whole)

    @functools.cached_property
    def _nonzeros(self) -> tuple[float, float]:
        """How many to expect, of how many coordinates."""
        count = float(self._counts @ np.where(self._whole > 0, 1.0, self._scaled))
        return max(count, 1e-9), float(self._counts.sum())

    @functools.cached_property
    def _density(self) -> tuple[float, float]:
        """The share of non-zeros, and by how much their mean magnitude exceeds one."""
        count, total = self._nonzeros
        excess = max(float(self._counts @ self._scaled) / count - 1, 0.0)
        return min(count / total, 1 - 0.5 / total), excess


@dataclass(frozen=True)
class Magnitudes:
    """How many |x_i| / ||x|| lie in each bin, and their mean."""

    counts: Float64
    means: Float64

    @classmethod
    def of(cls, update: Float32, norm: float) -> Magnitudes:
        """Count by sign-less exponent and three mantissa bits."""
        bins = (update.view(np.uint32) & np.uint32(0x7FFFFFFF)) >> np.uint32(20)
        counts = np.bincount(bins, minlength=1)
        sums = np.bincount(bins, weights=np.abs(update))
        used = counts > 0
        return cls(counts[used].astype(np.float64), sums[used] / counts[used] / norm)

    def expected(self, levels: int) -> Expected:
        """Return what to expect at ``levels``."""
        return Expected(self, levels)


def binary_entropy(share: float) -> float:
    """Return the entropy, in bits, of a yes that comes with this probability."""
    return -share * math.log2(share) - (1 - share) * math.log2(1 - share) if 0 < share < 1 else 0.0


def geometric_entropy(mean: float) -> float:
    """Return the entropy, in bits, of a geometric integer of this mean."""
    return (1 + mean) * math.log2(1 + mean) - mean * math.log2(mean) if mean > 0 else 0.0
