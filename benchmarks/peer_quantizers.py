"""Peer quantizers in our own words: what others would make of an update, and the bytes that would take.

    DRIVE   one rotation, the sign of each coordinate, one scale ||x||^2 / ||R x||_1 (Vargaftik et al. 2021)
    EDEN    the same with the 2^b centroids of a Gaussian; below one bit a random part of the coordinates is
            sent, one bit each (Vargaftik et al. 2022)
    top-k   the k largest coordinates as they are: biased, so it needs error feedback, which adds what was not
            sent to the next update. On one fixed update x the mean of T rounds misses x by the memory e_T / T,
            that of an unbiased quantizer by sqrt(NMSE / T) ||x||. So ||e_T||^2 / (T ||x||^2), T = 100, is put
            beside the NMSE of the others: the one-round error of an unbiased quantizer with as good a mean

Bytes are counted in the peers' favour: levels at their fixed width and one float32 a block; seeds and headers
travel for free. Padding to a power of two would cost them rate: so from one bit on they rotate blocks of
2048, and below it, where it costs nothing, the whole update.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import numpy.typing as npt

from fedpaq.quantizers.rotated.rotation import transform_numpy

Float32 = npt.NDArray[np.float32]
BLOCK = 2048


@functools.cache
def lloyd_max(bits: int) -> npt.NDArray[np.float64]:
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
    rows = np.zeros((-(-update.size // size), size), np.float32)
    rows.reshape(-1)[: update.size] = update
    signs = rng.choice(np.array([-1, 1], np.float32), rows.shape)
    z = transform_numpy(rows * signs).astype(np.float64) / math.sqrt(size)
    energies = (z**2).sum(axis=1, keepdims=True)
    spreads = np.maximum(np.sqrt(energies / size), 1e-30)
    centroids = lloyd_max(max(1, int(bits)))
    levels = np.sign(z) * centroids[np.searchsorted((centroids[1:] + centroids[:-1]) / 2, np.abs(z) / spreads)]
    if bits < 1:
        levels = levels * (rng.random(z.shape) < bits * update.size / size)
    levels *= energies / np.maximum((levels * z).sum(axis=1, keepdims=True), 1e-30)
    back = transform_numpy(levels.astype(np.float32)) / math.sqrt(size) * signs
    return back.reshape(-1)[: update.size].astype(np.float32), update.size * bits / 8 + 4 * len(rows)


def top_k(update: Float32, count: int) -> tuple[Float32, float]:
    """Return the largest coordinates and their bytes: positions at their entropy, values as float32."""
    kept = np.zeros_like(update)
    at = np.argpartition(np.abs(update), update.size - count)[update.size - count :]
    kept[at] = update[at]
    share = count / update.size
    entropy = -share * math.log2(share) - (1 - share) * math.log2(1 - share) if share < 1 else 0.0
    return kept, (update.size * entropy + 32 * count) / 8


def top_k_with_feedback(update: Float32, count: int, rounds: int = 100) -> tuple[float, float]:
    """Return the error put beside the others' NMSE, and the bytes of one round."""
    memory = np.zeros_like(update)
    for _ in range(rounds):
        memory += update
        kept, size = top_k(memory, count)
        memory -= kept
    exact = update.astype(np.float64)
    return float((memory.astype(np.float64) ** 2).sum() / (exact**2).sum()) / rounds, size
