"""Sketch: an update in rotated space, from which messages of any length can be made.

scale_b = ||x_b||^2 / <W x_b, level_b>   makes   <x_hat_b, x_b> = ||x_b||^2   exactly, whatever the levels. Without
it, where a mean that is right matters less than one message that is near, each block is scaled to be nearest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedpaq.arrays import Float32, Float64, Int64
from fedpaq.errors import NonFiniteUpdateError
from fedpaq.kernels import numba as compiled
from fedpaq.quantizers.rotated.allocation import (
    SPARSE_RATE,
    Allocation,
    block_energies,
    densities,
    half_steps,
    kept,
    share,
)
from fedpaq.quantizers.rotated.message import (
    LARGEST,
    MOST_MANTISSA_BITS,
    RotatedMessage,
    largest_estimate,
    round_scales,
)
from fedpaq.quantizers.rotated.rotation import Blocks, rotate_numpy
from fedpaq.quantizers.rotated.rounding import Rounded, round_blocks
from fedpaq.randomness import Key

LEAST_MANTISSA_BITS = 2
GUESS = np.float32(0.85)  # a threshold surely below the one of the rank wanted


@dataclass(frozen=True)
class Sketch:
    """An update in rotated space, from which messages of any length can be made."""

    blocks: Blocks
    energies: Float64  # ||x_b||^2
    factors: Float32  # powers of two that bring each block's norm near 1, so that nothing overflows
    rotated: Float32  # (blocks, n): W (factor x)
    error: float
    key: Key
    unbiased: bool = True

    @classmethod
    def of(cls, row: Float32, plan: Allocation, cells: Float64, key: Key, unbiased: bool = True) -> Sketch:
        """Rotate an update."""
        blocks = plan.blocks
        energies = block_energies(cells, blocks) if blocks.count > 1 else cells.sum()[None]
        factors = factors_of(energies)
        kernels = compiled.load("rotation")
        if kernels is None:
            rotated = rotate_numpy(row, blocks, factors, key)
        else:
            rotated = np.empty((blocks.count, blocks.size), np.float32)
            kernels.rotate(row, blocks.length, blocks.turns, factors, key.seed, key.round, key.client, rotated)
        return cls(blocks, energies, factors, rotated, plan.error, key, unbiased)

    def message(self, bits: float) -> RotatedMessage:
        """Return the message of about this many bits."""
        return self.scaled(self.rounded(bits), bits)

    def rounded(self, bits: float) -> Rounded:
        """Round to about this many bits."""
        rates = np.arcsinh(share(self.energies, self.blocks.size, bits)) / math.log(2)
        return round_blocks(self.rotated, *thresholds(self.blocks, self.energies, self.factors, rates))

    def shortest(self) -> RotatedMessage:
        """Send the largest coordinate of each block and nothing else."""
        rows = np.abs(self.rotated)
        levels = np.zeros(rows.shape, np.int16)
        at = np.flatnonzero(self.energies), rows.argmax(axis=1)[self.energies > 0]
        levels[at] = np.sign(self.rotated[at])
        products = np.einsum("ij,ij->i", rows, np.abs(levels), dtype=np.float64)
        counts = np.count_nonzero(levels, axis=1)
        return self.scaled(Rounded(levels.reshape(-1), products, counts, counts), 0.0)

    def scaled(self, rounded: Rounded, bits: float, nearest: bool = False) -> RotatedMessage:
        """Attach the scales that make <x_hat, x> = ||x||^2 in each block, or that make it nearest.

        They are rounded at random, or to the ``nearest``, which is biased.
        """
        mantissa_bits = mantissa_for(self.error, bits / self.blocks.count)
        sent = rounded.counts > 0
        exact = np.divide(self.energies * self.factors, rounded.products, out=np.zeros(sent.size), where=sent)
        if not self.unbiased:
            exact *= self._nearness(rounded, exact)
        drawn_by = self.key if self.unbiased and not nearest else None
        scales = np.where(sent, round_scales(exact, mantissa_bits, drawn_by), 0.0)
        rounded.levels.flags.writeable = False
        most, count = int(rounded.largest.max()), int(rounded.counts.sum())
        message = RotatedMessage(self.blocks, rounded.levels, scales, mantissa_bits, most, count, self.key)
        if not largest_estimate(message) <= LARGEST:
            raise NonFiniteUpdateError(
                f"the estimate of the update of client={self.key.client} in round={self.key.round} may exceed "
                "float32; lower step_size"
            )
        return message

    def _nearness(self, rounded: Rounded, exact: Float64) -> Float64:
        """Return ||x||^2 / ||x_hat||^2 of each block, with x_hat scaled by ``exact``: least squares.

        What falls on the padding is dropped, and with it that share of x_hat - x.
        """
        rows = rounded.levels.reshape(self.blocks.count, -1)
        squares = np.einsum("ij,ij->i", rows, rows, dtype=np.float64)  # exact, in whatever order
        whole = (exact * self.blocks.growth) ** 2 * squares
        near = self.energies + kept(self.blocks) * (whole - self.energies)
        return np.asarray(np.divide(self.energies, near, out=np.ones(near.size), where=near > 0))


def factors_of(energies: Float64) -> Float32:
    """Return the powers of two that bring the norms of blocks with these energies near 1."""
    exponents = np.clip(-np.frexp(np.sqrt(energies))[1], -126, 126)
    return np.asarray(np.ldexp(np.float32(1), exponents), np.float32)


def thresholds(blocks: Blocks, energies: Float64, factors: Float32, rates: Float64) -> tuple[Int64, Float32]:
    """Return how many of each block to send and from which magnitude on, as ``round_numpy`` takes them.

    The others are (..., blocks): energies, factors and bits a coordinate.
    """
    halves = half_steps(rates) * np.sqrt(energies / blocks.size) * blocks.growth * factors  # in units of W (factor x)
    few = rates < SPARSE_RATE
    wanted = np.where(few, np.clip(np.rint(blocks.size * densities(rates)), 1, blocks.size), -1).astype(np.int64)
    wanted[energies == 0] = 0
    return wanted, np.where(few, GUESS * halves, halves).astype(np.float32)


def mantissa_for(error: float, block_bits: float) -> int:
    """Return the mantissa bits of a scale that cost least, in a block of so many bits.

    Rounding at random to m bits adds 0.09 / 4^m (1 + error) to the error; a bit more is one less for levels.
    """
    bits = 0.5 * math.log2(0.125 * (1.0 + error) / max(error, 1e-9) * max(block_bits, 1.0))
    return min(max(round(bits), LEAST_MANTISSA_BITS), MOST_MANTISSA_BITS)
