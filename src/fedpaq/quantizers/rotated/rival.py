"""Rival: the levels at which LowPrecision would beat a rotation, for this update and these bytes.

Where few coordinates carry most of an update, rotating it throws that knowledge away. LowPrecision's expected
error and length are functions of the update alone, so choosing by them keeps both quantizers unbiased:

    E ||Q(x) - x||^2 = (||x|| / s)^2 sum f_i (1 - f_i),   f_i the fraction of |x_i| s / ||x||,

and a message of k non-zeros with mean magnitude m takes about k (log2(p / k) + log2(e) + 1 + g(m - 1)) bits,
g being the entropy of a geometric integer. Both are taken of a histogram of the magnitudes, eight bins an
octave.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedpaq.quantizers.low_precision import LowPrecision
from fedpaq.quantizers.message import MAX_LEVELS, Float32, Float64

SMALL = 4096  # dimensions up to which the comparison is always made
HEADER_BYTES = 15
DEVIATIONS = 4.0  # room for chance in the number of non-zeros, where bytes are a promise


@dataclass(frozen=True)
class Magnitudes:
    """A histogram of |x_i| / ||x||: how many lie in each bin, and their mean."""

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

    def expected(self, levels: int, deviations: float) -> tuple[float, float]:
        """Return E||Q(x) - x||^2 / ||x||^2, and the non-zeros' bits so many deviations above their mean."""
        scaled = self.means * levels
        whole = np.floor(scaled)
        fraction = scaled - whole
        error = float(self.counts @ (fraction * (1 - fraction))) / levels**2
        sent = np.where(whole > 0, 1.0, fraction)
        count = max(float(self.counts @ sent), 1e-9)
        excess = max(float(self.counts @ scaled) / count - 1, 0.0)
        each = math.log2(max(float(self.counts.sum()) / count, 1.0)) + 2.443 + geometric_entropy(excess)
        deviation = math.sqrt(float(self.counts @ (sent * (1 - sent))))
        return error, (count + deviations * deviation) * each + 8


def geometric_entropy(mean: float) -> float:
    """Return the entropy, in bits, of a geometric integer of this mean."""
    return (1 + mean) * math.log2(1 + mean) - mean * math.log2(mean) if mean > 0 else 0.0


def may_win(dimension: int, concentration: float, bits: float, error: float) -> bool:
    """Whether to look closer; ``concentration`` is (sum |x_i|)^2 / ||x||^2, 0.64 p for a Gaussian.

    Sending k coordinates in proportion to their size has an error of about concentration / k - 1.
    """
    affordable = bits / (math.log2(max(dimension / max(bits, 1.0), 1.0)) + 3)
    close = concentration < 2 * (1 + error) * affordable and concentration < 0.25 * dimension
    return bits > 0 and (dimension <= SMALL or close)


def better_levels(
    update: Float32, norm: float, magnitude: float, payload_bytes: int, error: float, promised: bool
) -> LowPrecision | None:
    """Return LowPrecision of the most levels that fit, if its expected error is below ``error`` ||x||^2.

    ``magnitude`` is the sum of |x_i|; ``promised`` says that no payload may be longer.
    """
    bits = 8.0 * (payload_bytes - HEADER_BYTES)
    if not may_win(update.size, (magnitude / norm) ** 2, bits, error):
        return None
    histogram = Magnitudes.of(update, norm)
    room = DEVIATIONS if promised else 0.0
    fitting, beyond = 0, 1
    while beyond <= MAX_LEVELS and histogram.expected(beyond, room)[1] <= bits:
        fitting, beyond = beyond, 2 * beyond
    while beyond - fitting > max(1, fitting // 16):
        middle = (fitting + beyond) // 2
        if middle <= MAX_LEVELS and histogram.expected(middle, room)[1] <= bits:
            fitting = middle
        else:
            beyond = middle
    if fitting == 0 or histogram.expected(fitting, room)[0] >= error:
        return None
    return LowPrecision(fitting)
