"""Plans: the blocks and bits of many updates at once, equal to the bit to those of one by one.

Everything is decided from the energies of the candidates' blocks, so a device that has the updates need send
only these. Sums over blocks run along contiguous rows, where NumPy adds in the order of one row alone.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedpaq.arrays import Float32, Float64, Int64
from fedpaq.quantizers.rotated.allocation import EXCESS, NEWTON_STEPS, SCALE_BITS, kept, share
from fedpaq.quantizers.rotated.message import MOST_MANTISSA_BITS
from fedpaq.quantizers.rotated.rotation import Blocks
from fedpaq.quantizers.rotated.sketch import LEAST_MANTISSA_BITS, factors_of, mantissa_for, thresholds


@dataclass(frozen=True, eq=False)
class Rounding:
    """How to round the blocks of some updates, all cut alike; arrays are (updates, blocks)."""

    blocks: Blocks
    energies: Float64
    factors: Float32
    wanted: Int64
    least: Float32
    mantissa_bits: Int64  # (updates,)


def share_rows(energies: Float64, size: int, bits: float, tolerance: float = 1e-4) -> Float64:
    """Return ``share`` of each row (updates, blocks)."""
    largest = energies.max(axis=1, initial=0.0)
    if bits <= 0 or not (largest > 0).all():
        return np.stack([share(row, size, bits, tolerance) for row in energies])
    ratios = np.sqrt(energies / largest[:, None])
    target = bits * math.log(2) / size
    v = np.zeros(len(energies))
    active, rest = np.arange(len(energies)), ratios
    for _ in range(NEWTON_STEPS):
        scaled = rest * v[active, None]
        missing = target - np.arcsinh(scaled).sum(axis=1)
        on = ~(np.abs(missing) < tolerance * target)
        if not on.all():
            active, rest, scaled, missing = active[on], rest[on], scaled[on], missing[on]
        if not active.size:
            break
        v[active] += missing / (rest / np.sqrt(1 + scaled * scaled)).sum(axis=1)
    return np.asarray(ratios * v[:, None])


def expected_errors(energies: Float64, totals: Float64, blocks: Blocks, bits: float) -> Float64:
    """Return the error that ``allocate`` expects of this cut, for each row of energies (updates, blocks)."""
    scaled = share_rows(energies, blocks.size, bits - SCALE_BITS * (blocks.count - 1), 1e-2)
    some = scaled > 0
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = energies / (2 * scaled * (scaled + np.sqrt(1 + scaled**2)))  # 4^R - 1
    sums = parts.sum(axis=1)
    for row in np.flatnonzero(~some.all(axis=1)):  # what is left out changes the order of the sum
        sums[row] = parts[row, some[row]].sum()
    return np.asarray(EXCESS * sums / totals * kept(blocks))


def best_cuts(
    cuts: Sequence[Blocks], energies: Sequence[Float64], totals: Float64, bits: float
) -> tuple[Int64, Float64]:
    """Return the number of each update's best candidate, and its error; ``energies`` has an array for each."""
    errors = np.stack(
        [expected_errors(some, totals, blocks, bits) for blocks, some in zip(cuts, energies, strict=True)]
    )
    best = errors.argmin(axis=0)  # the first, as in ``allocate``
    return best, errors[best, np.arange(len(totals))]


def roundings(blocks: Blocks, energies: Float64, errors: Float64, bits: float) -> Rounding:
    """Return how ``Sketch`` rounds updates of these energies (updates, blocks) and expected errors."""
    bits -= SCALE_BITS * (blocks.count - 1)
    factors = factors_of(energies)
    rates = np.arcsinh(share_rows(energies, blocks.size, bits)) / math.log(2)
    wanted, least = thresholds(blocks, energies, factors, rates)
    return Rounding(blocks, energies, factors, wanted, least, mantissas(errors, bits / blocks.count))


def mantissas(errors: Float64, block_bits: float) -> Int64:
    """Return ``mantissa_for`` of each error; only where it is a close call is it asked."""
    bits = 0.5 * np.log2(0.125 * (1.0 + errors) / np.maximum(errors, 1e-9) * max(block_bits, 1.0))
    found = np.clip(np.rint(bits), LEAST_MANTISSA_BITS, MOST_MANTISSA_BITS).astype(np.int64)
    close = np.abs(np.abs(bits - np.rint(bits)) - 0.5) < 1e-6
    found[close] = [mantissa_for(float(error), block_bits) for error in errors[close]]
    return found
