"""Allocation: which blocks an update is cut into, and the bits that each of them gets.

With E_b the energy of a block and D(R) = 1 / (4^R - 1) the least error of R bits a coordinate, the sum of
E_b D(R_b) under a total of bits is least at

    R_b = asinh(rho_b v) / ln 2,   rho_b the root mean square of the block, v the same for all:

in proportion to rho_b where bits are few, to its logarithm where they are many. Smaller blocks follow the
update more closely and cost a scale each: the number of blocks is that of least expected error. It depends on
the update alone, so the quantizer stays unbiased.

The least error is not always the one that harms training least. Bits in proportion to rho_b leave an error in
proportion to rho_b, most where gradients are large and losses curved. One block spreads it evenly.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np

from fedpaq.arrays import Float64
from fedpaq.codec.frame import frame_bytes
from fedpaq.errors import ConfigError
from fedpaq.quantizers.rotated.rotation import CELL, Blocks

LEAST_SIZE = 512  # smaller blocks mix too little
BLOCK_BITS = 80.0  # about what a block must be worth to have a scale of its own
SCALE_BITS = 5.5  # what that scale costs
SPARSE_RATE = 0.5  # bits a coordinate below which one threshold and a sign are best
EXCESS = 1.5  # error of the best scalar quantizer, about, in units of D(R)
NEWTON_STEPS = 12
FIELD_BYTES = 7  # blocks, non-zeros, levels, mantissa bits, first scale
MOST_RATE = 13.0  # bits a coordinate: finer steps than these are not made


@dataclass(frozen=True)
class Allocation:
    """The blocks, and the error to expect, in units of ||x||^2."""

    blocks: Blocks
    error: float


@functools.cache
def gaussian_curve() -> tuple[Float64, Float64, Float64]:
    """Return rates, half steps in standard deviations and densities of uniform rounding of a Gaussian.

    The rate is the entropy of round(z / (2 half)); rounded to 2^-30, so that platforms agree.
    """
    halves = np.exp(np.linspace(math.log(9.0), math.log(2e-4), 1500))
    rates, densities = np.empty(halves.size), np.empty(halves.size)
    for i, half in enumerate(halves):
        if half < 0.02:  # so fine that the entropy is that of the density
            rates[i] = 0.5 * math.log2(2 * math.pi * math.e) - math.log2(2 * half)
            densities[i] = 1 - 2 * half / math.sqrt(2 * math.pi)
            continue
        tails = np.array([math.erfc(edge / math.sqrt(2)) for edge in half * np.arange(1, 2 * int(10 / half) + 3, 2)])
        parts = np.concatenate([[1 - tails[0]], tails[:-1] - tails[1:]])  # zero, then both signs of each level
        parts = parts[parts > 0]
        rates[i] = -float(parts @ np.log2(parts)) + tails[0]
        densities[i] = tails[0]
    return (np.round(rates * 2.0**30) * 2.0**-30, np.round(halves * 2.0**30) * 2.0**-30, densities)


def half_steps(rates: Float64) -> Float64:
    """Return half the step, in standard deviations, that rounds a Gaussian to these rates."""
    known, halves, _ = gaussian_curve()
    return np.asarray(np.interp(rates, known, halves))


def densities(rates: Float64) -> Float64:
    """Return the share of non-zeros at these rates."""
    known, _, shares = gaussian_curve()
    return np.asarray(np.interp(rates, known, shares))


def share(energies: Float64, size: int, bits: float, tolerance: float = 1e-4) -> Float64:
    """Return v rho_b for each block of ``size`` coordinates, such that the rates make ``bits`` in all.

    Newton's method from v = 0 on a concave function: it never passes the solution.
    """
    largest = float(energies.max(initial=0.0))
    if largest == 0 or bits <= 0:
        return np.zeros(energies.size)
    ratios = np.sqrt(energies / largest)
    target = bits * math.log(2) / size
    v = 0.0
    for _ in range(NEWTON_STEPS):
        scaled = ratios * v
        missing = target - float(np.arcsinh(scaled).sum())
        if abs(missing) < tolerance * target:
            break
        v += missing / float((ratios / np.sqrt(1 + scaled * scaled)).sum())
    return np.asarray(ratios * v)


def candidates(dimension: int, bits: float, count: int | None = None) -> list[Blocks]:
    """Return the cuts worth looking at: one for each size, none with blocks of too few bits; or that of ``count``."""
    if count is not None:
        chosen = Blocks(dimension, count)
        if not chosen.fits or (count > 1 and count * BLOCK_BITS > bits):
            raise ConfigError(
                f"blocks={count} does not suit dimension={dimension} and {max(bits, 0.0):.0f} bits; choose 1, or fewer "
                f"than {count} of at least {BLOCK_BITS:g} bits each, or leave it out"
            )
        return [chosen]
    found: list[Blocks] = []
    size = 1 << (dimension - 1).bit_length()
    while True:
        blocks = Blocks(dimension, -(-dimension // size))
        if blocks.count > 1 and (size < LEAST_SIZE or blocks.count * BLOCK_BITS > bits):
            return found
        if blocks.fits:
            found.append(blocks)
        if size == 1:
            return found
        size //= 2


def even_error(blocks: Blocks, bits: float) -> float:
    """Return the error to expect of an update whose energy is spread evenly: no other has more."""
    rate = min(max(bits - SCALE_BITS * (blocks.count - 1), 1.0) / blocks.padded, MOST_RATE)
    return EXCESS / math.expm1(rate * math.log(4)) * kept(blocks)


def kept(blocks: Blocks) -> float:
    """Return the share of the error that falls on the update; the rest falls on the padding and is dropped."""
    return (blocks.length - 1) / max(blocks.size - 1, 1)


def block_energies(cells: Float64, blocks: Blocks) -> Float64:
    """Return the energy of each block."""
    return np.asarray(np.add.reduceat(cells, np.arange(blocks.count) * (blocks.length // CELL)))


def allocate(cells: Float64, dimension: int, bits: float, count: int | None = None) -> Allocation:
    """Return the best way to spend ``bits`` on an update whose cells have these energies, not all zero.

    ``count`` is the number of blocks where that is given.
    """
    total = float(cells.sum())
    best = None
    for blocks in candidates(dimension, bits, count):
        energies = block_energies(cells, blocks) if blocks.count > 1 else np.array([total])
        scaled = share(energies, blocks.size, bits - SCALE_BITS * (blocks.count - 1), 1e-2)
        some = scaled > 0
        growth = 2 * scaled[some] * (scaled[some] + np.sqrt(1 + scaled[some] ** 2))  # 4^R - 1
        error = EXCESS * float((energies[some] / growth).sum()) / total * kept(blocks)
        if best is None or error < best.error:
            best = Allocation(blocks, error)
    assert best is not None  # the whole update is always a candidate
    return best


def body_bits(dimension: int, payload_bytes: int) -> float:
    """Return the bits that a payload leaves for levels in one block."""
    return 8.0 * (payload_bytes - frame_bytes(dimension) - FIELD_BYTES) - 4.0  # the coder's last byte is half empty


def variance_bound(dimension: int, payload_bytes: int, count: int | None = None) -> float:
    """Return q of payloads of this length, with a quarter to spare.

    Even energy, Gaussian when rotated, is the worst update. However short, a message sends the largest of at
    most ``size`` coordinates, whose error is 1.1 ``size`` or less.
    """
    bits = body_bits(dimension, payload_bytes)
    error = min(even_error(blocks, bits) for blocks in candidates(dimension, bits, count))
    return min(1.1 * Blocks(dimension, 1).size, 1.25 * error) + 0.02
