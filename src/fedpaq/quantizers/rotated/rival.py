"""Rival: the levels at which LowPrecision would beat a rotation, for this update and these bytes.

Where few coordinates carry most of an update, or its scale varies within a few coordinates, rotating it throws
that knowledge away. LowPrecision's expected error follows from the update (see ``magnitudes``). Its length does
not: the adaptive code goes well below the entropy where non-zeros cluster. So it is tried, with a key of its
own that no client has: the choice depends on the update and on nothing that the message is drawn from, and
both quantizers stay unbiased.

Where bytes are a promise, a message that is drawn too long is sent rotated instead, which is a choice by the
draw. Its bias is E[(Q - x) 1(too long)]. Coordinates are drawn independently and the length is nearly Gaussian,
being a sum over them, so the bias has a norm of at most

    max_i sd(Q_i) phi(z) <= ||x|| / (2 s) phi(z),   phi the normal density, z the deviations of room left,

and z is such that this is 8e-4 ||x||, or less.
"""

import math
from dataclasses import dataclass

import numpy as np

from fedpaq import codec
from fedpaq.arrays import Float32, Int64
from fedpaq.quantizers.low_precision import LowPrecision
from fedpaq.quantizers.message import MAX_LEVELS
from fedpaq.quantizers.rotated.magnitudes import Magnitudes
from fedpaq.randomness import Key, Keys

TRIAL_SEED, TRIAL_ROUND = 0x9E3779B97F4A7C15, 2**32 - 1  # keys of trials
SMALL = 4096  # dimensions up to which the comparison is always made
LOOK_RATE = 0.75  # bits a coordinate from which on a part of the update is looked at
LARGE = 2**20  # dimensions from which on that is done before all of it is, at any rate
SEGMENT, SEGMENTS, MORE_SEGMENTS = 128, 64, 1024  # that part, and that of a large update
PART_CARE = 1.2  # a part may have so many times the error that the whole must stay below
HEADER_BITS = 120.0
LEAST_RATIO = 0.65  # of a length to the entropy, where non-zeros cluster: trials begin here
ROUNDS = 4
BIAS = 8e-4  # where bytes are a promise, in units of ||x||
LEAST_DEVIATIONS = 2.0  # too long one time in 40 at most
SPREAD = 1.1  # room for what the deviation's estimate may lack
CARE = 1.07  # a rotated message has so many times the error that its plan expects


@dataclass(frozen=True)
class Search:
    """The levels that fit some bits."""

    update: Float32
    histogram: Magnitudes
    bits: float
    promised: bool

    def best(self, error: float) -> int:
        """Return the most levels that fit, or 0 if their expected error is not below ``error``."""
        ratio, levels = LEAST_RATIO, 0
        trials = (4 if self.promised else 2) if self.update.size <= SMALL else 1  # long ones hardly vary
        for _ in range(ROUNDS):
            before, levels = levels, self._fitting(ratio, math.sqrt(1 + 1 / trials))
            if levels == 0 or self.histogram.expected(levels).error >= error:
                return 0
            if abs(levels - before) <= 0.02 * levels:
                break
            ratio = (self._tried(levels, trials) - HEADER_BITS) / self.histogram.expected(levels).bits
        return levels

    def _fitting(self, ratio: float, spread: float) -> int:
        """Return the most levels whose messages fit, with room for chance where bytes are a promise."""

        def fits(levels: int) -> bool:
            found = self.histogram.expected(levels)
            room = deviations(levels) * SPREAD * spread * found.deviation + 8 if self.promised else 0.0
            return HEADER_BITS + ratio * found.bits + room <= self.bits

        guess = int(math.sqrt(self.update.size) * 2.0 ** min(self.bits / self.update.size - 4, 16))  # too few
        most, beyond = (guess, 2 * guess) if 1 <= guess <= MAX_LEVELS and fits(guess) else (0, 1)
        while beyond <= MAX_LEVELS and fits(beyond):
            most, beyond = beyond, 2 * beyond
        while beyond - most > max(1, most // 64):
            middle = (most + beyond) // 2
            most, beyond = (middle, beyond) if middle <= MAX_LEVELS and fits(middle) else (most, middle)
        return most

    def _tried(self, levels: int, trials: int) -> float:
        """Return the mean bits of some messages."""
        keys = [Key(seed=TRIAL_SEED, round=TRIAL_ROUND, client=trial) for trial in range(trials)]
        rows = np.broadcast_to(self.update, (trials, self.update.size))
        payloads = codec.encode_batch(LowPrecision(levels).quantize_batch(rows, Keys.of(keys)))
        return 8 * sum(map(len, payloads)) / trials


def deviations(levels: int) -> float:
    """Return z with phi(z) / (2 s) <= BIAS.

    >>> [round(deviations(levels), 2) for levels in (1, 10, 1000)]
    [3.32, 2.54, 2.0]
    """
    odds = 1 / (2 * levels * BIAS * math.sqrt(2 * math.pi))
    return max(math.sqrt(2 * math.log(odds)) if odds > 1 else 0.0, LEAST_DEVIATIONS)


def may_win(dimension: int, concentration: float, bits: float, error: float) -> bool:
    """Whether to look closer; ``concentration`` is (sum |x_i|)^2 / ||x||^2, 0.64 p for a Gaussian.

    Sending k coordinates in proportion to their size has an error of about concentration / k - 1.
    """
    affordable = bits / (math.log2(max(dimension / max(bits, 1.0), 1.0)) + 3)
    close = concentration < 2 * (1 + error) * affordable and concentration < 0.25 * dimension
    return bits > 0 and (dimension <= SMALL or close)


def part_of(dimension: int) -> Int64:
    """Return the numbers of the coordinates that stand for an update of more than these."""
    count = SEGMENTS if dimension < LARGE else MORE_SEGMENTS
    starts = np.linspace(0, dimension - SEGMENT, count).astype(np.int64)
    return np.asarray((starts[:, None] + np.arange(SEGMENT)).reshape(-1))


def part_may_win(part: Float32, dimension: int, norm: float, bits: float, error: float) -> bool:
    """Whether that part of an update would be sent with less error."""
    share = part.size / dimension
    histogram = Magnitudes.of(part, norm)
    # One coordinate more, so that the part has the norm, and hence the levels, of the whole.
    rest = np.float32(math.sqrt(max(norm**2 - float((part.astype(np.float64) ** 2).sum()), 0.0)))
    return Search(np.append(part, rest), histogram, bits * share, False).best(PART_CARE * error * share) > 0


def better_levels(
    update: Float32, norm: float, magnitude: float, payload_bytes: int, error: float, promised: bool
) -> LowPrecision | None:
    """Return LowPrecision of the most levels that fit, if its expected error is below ``error`` ||x||^2.

    ``magnitude`` is the sum of |x_i|; ``promised`` says that no payload may be longer.
    """
    bits, error = 8.0 * payload_bytes, CARE * error
    close = may_win(update.size, (magnitude / norm) ** 2, bits - HEADER_BITS, error)
    if not close and bits < LOOK_RATE * update.size:
        return None
    by_part = update.size >= LARGE or (not close and update.size > 2 * SEGMENT * SEGMENTS)
    if by_part and not part_may_win(update[part_of(update.size)], update.size, norm, bits, error):
        return None
    levels = Search(update, Magnitudes.of(update, norm), bits, promised).best(error)
    return LowPrecision(levels) if levels else None
