"""Peer quantizers in our own words: what others would make of an update, and the bytes that would take.

    DRIVE   one rotation, the sign of each coordinate, one scale ||x||^2 / ||R x||_1 (Vargaftik et al. 2021)
    EDEN    the same with the 2^b centroids of a Gaussian; below one bit a random part of the coordinates is
            sent, one bit each (Vargaftik et al. 2022)
    QUIC-FL one rotation for all clients, so that the server turns back only their sum; each coordinate is rounded
            without bias to one of 2^b levels that depend on a number both sides draw (Ben Basat et al. 2022).
            One in 512 is too large for that and is sent as it is. It needs one bit a coordinate or more
    top-k   the k largest coordinates as they are: biased, so it needs error feedback, which adds what was not
            sent to the next update. On one fixed update x the mean of T rounds misses x by the memory e_T / T,
            that of an unbiased quantizer by sqrt(NMSE / T) ||x||. So ||e_T||^2 / (T ||x||^2), T = 100, is put
            beside the NMSE of the others: the one-round error of an unbiased quantizer with as good a mean

Bytes are counted in the peers' favour: levels at their fixed width, what is sent as it is at 32 bits and the
entropy of its position, and one float32 a block; seeds and headers travel for free. Padding to a power of two
would cost them rate: so from one bit on they rotate blocks of 2048, and below it, where it costs nothing, the
whole update.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize

from fedpaq.quantizers.rotated.magnitudes import binary_entropy
from fedpaq.quantizers.rotated.rotation import transform_numpy

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
BLOCK = 2048
TOO_LARGE = 1 / 512  # the share of coordinates that QUIC-FL sends as they are
SHARED = {1: 64, 2: 32, 3: 16, 4: 16}  # values of the number that both sides of QUIC-FL draw, by bits


@functools.cache
def lloyd_max(bits: int) -> Float64:
    """Return the positive centroids of a Gaussian for 2^bits levels."""
    half = 2 ** (bits - 1)
    centroids = np.linspace(0.1, 3.0, half)
    density = lambda t: np.exp(-(t**2) / 2) / math.sqrt(2 * math.pi)
    tail = np.vectorize(lambda t: 0.5 * math.erfc(t / math.sqrt(2)))
    for _ in range(2000):
        edges = np.concatenate([[0.0], (centroids[1:] + centroids[:-1]) / 2, [40.0]])
        centroids = (density(edges[:-1]) - density(edges[1:])) / (tail(edges[:-1]) - tail(edges[1:]))
    return centroids


def eden(update: Float32, bits: float, rng: np.random.Generator) -> tuple[Float32, float]:
    """Return EDEN's estimate and its bytes; one bit is DRIVE's unbiased form."""
    whole = 1 << (update.size - 1).bit_length()
    size = whole if bits < 1 else min(whole, BLOCK)
    z, signs = rotated(update, size, rng)
    energies = (z**2).sum(axis=1, keepdims=True)
    spreads = np.maximum(np.sqrt(energies / size), 1e-30)
    centroids = lloyd_max(max(1, int(bits)))
    levels = np.sign(z) * centroids[np.searchsorted((centroids[1:] + centroids[:-1]) / 2, np.abs(z) / spreads)]
    if bits < 1:
        levels = levels * (rng.random(z.shape) < bits * update.size / size)
    levels *= energies / np.maximum((levels * z).sum(axis=1, keepdims=True), 1e-30)
    return rotated_back(levels, signs)[: update.size], update.size * bits / 8 + 4 * len(z)


def rotated(update: Float32, size: int, rng: np.random.Generator) -> tuple[Float64, Float32]:
    """Return the update in blocks of this size, each rotated, and the signs that were used."""
    rows = np.zeros((-(-update.size // size), size), np.float32)
    rows.reshape(-1)[: update.size] = update
    signs = rng.choice(np.array([-1, 1], np.float32), rows.shape)
    return transform_numpy(rows * signs).astype(np.float64) / math.sqrt(size), signs


def rotated_back(rows: Float64, signs: Float32) -> Float32:
    """Undo ``rotated``."""
    back = transform_numpy(rows.astype(np.float32)) / math.sqrt(rows.shape[1]) * signs
    return back.reshape(-1).astype(np.float32)


@dataclass(frozen=True, eq=False)
class SharedLevels:
    """Levels (shared, 2^bits) for each shared number, and how a z in +-most becomes one of them.

    To send z, take each row's level nearest to some y. As y grows, one row after the other steps to its next level
    and the mean over rows grows from ``means[c]`` to ``means[c + 1]``. Where it passes z the row that steps does so
    with the probability that makes the mean z: for these levels, no unbiased choice has less error.
    """

    levels: Float64
    means: Float64  # after c steps
    squares: Float64  # of the levels, their mean after c steps
    chosen: npt.NDArray[np.int64]  # (shared, steps + 1): which level each row is at after c steps

    @classmethod
    def of(cls, levels: Float64) -> SharedLevels:
        """Order the steps."""
        shared, count = levels.shape
        order = np.argsort(((levels[:, 1:] + levels[:, :-1]) / 2).reshape(-1))
        rows = np.repeat(np.arange(shared), count - 1)[order]

        def after_steps(values: Float64) -> Float64:
            gains = (values[:, 1:] - values[:, :-1]).reshape(-1)[order] / shared
            return values[:, 0].mean() + np.concatenate([[0.0], np.cumsum(gains)])

        steps = np.arange(shared)[:, None] == rows
        chosen = np.concatenate([np.zeros((shared, 1), np.int64), np.cumsum(steps, axis=1)], axis=1)
        return cls(levels, after_steps(levels), after_steps(levels**2), chosen)

    def error(self, z: Float64, weights: Float64) -> float:
        """Return the mean squared error; what lies beyond the means cannot be sent without bias."""
        beyond = max(float(z.max() - self.means[-1]), 0.0)
        return 1e3 * (1 + beyond) if beyond else float(weights @ (np.interp(z, self.means, self.squares) - z**2))

    def sent(self, z: Float64, rng: np.random.Generator) -> Float64:
        """Return what the server makes of z."""
        step = np.clip(np.searchsorted(self.means, z, side="right") - 1, 0, self.means.size - 2)
        share = (z - self.means[step]) / (self.means[step + 1] - self.means[step])
        row = rng.integers(len(self.levels), size=z.shape)
        return np.asarray(self.levels[row, self.chosen[row, step + (rng.random(z.shape) < share)]])


@functools.cache
def shared_levels(bits: int, knots: int = 8) -> SharedLevels:
    """Return the levels of least error for a Gaussian cut off at TOO_LARGE.

    All rows together sample one odd, growing, piecewise linear function, whose slopes are searched for.
    """
    count, shared = 2**bits, SHARED[bits]
    most = NormalDist().inv_cdf(1 - TOO_LARGE / 2)
    z = np.linspace(-most, most, 801)
    weights = np.exp(-(z**2) / 2) / np.exp(-(z**2) / 2).sum()
    at = 2 * (np.arange(count) + (np.arange(shared)[:, None] + 0.5) / shared) / count - 1

    def sampled(slopes: Float64) -> SharedLevels:
        heights = np.concatenate([[0.0], np.cumsum(np.exp(slopes))])
        return SharedLevels.of(np.sign(at) * np.interp(np.abs(at), np.linspace(0, 1, knots + 1), heights))

    options = {"maxiter": 4000, "maxfev": 4000, "xatol": 1e-4, "fatol": 1e-7}
    searches = [
        minimize(
            lambda slopes: sampled(slopes).error(z, weights), np.full(knots, math.log(height * most / knots)),
            method="Nelder-Mead", options=options,
        )
        for height in (1.3, 2.0, 4.0)
    ]  # fmt: skip
    return sampled(min(searches, key=lambda search: search.fun).x)


def quic_fl(update: Float32, bits: int, rng: np.random.Generator) -> tuple[Float32, float]:
    """Return QUIC-FL's estimate and its bytes."""
    z, signs = rotated(update, min(1 << (update.size - 1).bit_length(), BLOCK), rng)
    spreads = np.maximum(np.sqrt((z**2).mean(axis=1, keepdims=True)), 1e-30)
    z /= spreads
    most = NormalDist().inv_cdf(1 - TOO_LARGE / 2)
    small = np.abs(z) <= most
    sent = np.where(small, shared_levels(bits).sent(np.clip(z, -most, most), rng), z)
    large = update.size * (1 - float(small.mean()))
    positions = update.size * binary_entropy(large / update.size)
    size = (update.size * bits + 32 * large + positions) / 8 + 4 * len(z)
    return rotated_back(sent * spreads, signs)[: update.size], size


def top_k(update: Float32, count: int) -> tuple[Float32, float]:
    """Return the largest coordinates and their bytes: positions at their entropy, values as float32."""
    kept = np.zeros_like(update)
    at = np.argpartition(np.abs(update), update.size - count)[update.size - count :]
    kept[at] = update[at]
    return kept, (update.size * binary_entropy(count / update.size) + 32 * count) / 8


def top_k_with_feedback(update: Float32, count: int, rounds: int = 100) -> tuple[float, float]:
    """Return the error put beside the others' NMSE, and the bytes of one round."""
    memory = np.zeros_like(update)
    for _ in range(rounds):
        memory += update
        kept, size = top_k(memory, count)
        memory -= kept
    exact = update.astype(np.float64)
    return float((memory.astype(np.float64) ** 2).sum() / (exact**2).sum()) / rounds, size
