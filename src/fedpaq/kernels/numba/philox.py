"""Philox 4x32-10 in machine code; twin: ``fedpaq.randomness``."""

import numpy as np
from numba import njit, uint32, uint64

from fedpaq.kernels.numba import kernel

GROUP = 256
LANES = 64
MINIBATCH = 2  # Purpose.MINIBATCH
_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint32(0x9E3779B9), np.uint32(0xBB67AE85)


@njit(inline="always")
def philox(c0, c1, c2, c3, k0, k1):
    """Return the four words of one block."""
    for _ in range(10):
        p0 = uint64(c0) * _M0
        p1 = uint64(c2) * _M1
        n0 = uint32(p1 >> uint64(32)) ^ c1 ^ k0
        n2 = uint32(p0 >> uint64(32)) ^ c3 ^ k1
        c1 = uint32(p1)
        c3 = uint32(p0)
        c0 = n0
        c2 = n2
        k0 = uint32(k0 + _W0)
        k1 = uint32(k1 + _W1)
    return c0, c1, c2, c3


@njit
def word(purpose, seed, round, client, index):
    """Return draw ``index`` of a stream."""
    within = index % GROUP
    block = uint64(index // GROUP) * uint64(LANES) + uint64(within % LANES)
    c3 = uint32((uint64(purpose) << uint64(24)) | (block >> uint64(32)))
    k0, k1 = uint32(uint64(seed) & uint64(0xFFFFFFFF)), uint32(uint64(seed) >> uint64(32))
    w0, w1, w2, w3 = philox(uint32(block & uint64(0xFFFFFFFF)), uint32(round), uint32(client), c3, k0, k1)
    low, high = (w0, w1) if within < 2 * LANES else (w2, w3)
    return uint32(low if within % (2 * LANES) < LANES else high)


@njit(inline="always")
def fill_group(group, purpose, seed, round, client, out):
    """Write the 256 draws of one group; a loop over lanes that the compiler vectorises."""
    first = uint64(group) * uint64(LANES)
    # 64 divides 2^32: one group never straddles a carry into the high word.
    low = uint32(first & uint64(0xFFFFFFFF))
    c1 = uint32(round)
    c2 = uint32(client)
    c3 = uint32((uint64(purpose) << uint64(24)) | (first >> uint64(32)))
    k0 = uint32(uint64(seed) & uint64(0xFFFFFFFF))
    k1 = uint32(uint64(seed) >> uint64(32))
    for lane in range(LANES):
        w0, w1, w2, w3 = philox(uint32(low + uint32(lane)), c1, c2, c3, k0, k1)
        out[lane] = w0
        out[LANES + lane] = w1
        out[2 * LANES + lane] = w2
        out[3 * LANES + lane] = w3


@kernel("void(int64, uint64, int64, int64, int64, uint32[::1])")
def words(purpose, seed, round, client, start, out):
    """Fill ``out`` with draws start.. of a stream; twin: ``randomness.words_numpy``."""
    buffer = np.empty(GROUP, np.uint32)
    position = 0
    while position < out.size:
        index = start + position
        within = index % GROUP
        fill_group(index // GROUP, purpose, seed, round, client, buffer)
        count = min(GROUP - within, out.size - position)
        for i in range(count):
            out[position + i] = buffer[within + i]
        position += count


@kernel("void(int64, uint64[::1], int64, int64[::1], uint32[::1])")
def first_words(purpose, seeds, round, clients, out):
    """Fill ``out`` with draw 0 of each job's stream; twin: ``randomness.first_uniforms`` without numba."""
    for job in range(out.size):
        k0 = uint32(seeds[job] & uint64(0xFFFFFFFF))
        k1 = uint32(seeds[job] >> uint64(32))
        c3 = uint32(uint64(purpose) << uint64(24))
        out[job], _, _, _ = philox(uint32(0), uint32(round), uint32(clients[job]), c3, k0, k1)


@kernel(
    "void(uint64[::1], int64, int64[::1], int64[::1], int64[:, ::1], int64, int64)",
    jobs=lambda *arguments: (len(arguments[-1]), 2 * arguments[-1].size),
)
def minibatches(seeds, round, clients, sizes, out, first, last):
    """Fill ``out`` (jobs, count) with positions; twin: ``randomness.minibatches`` without numba."""
    count = out.shape[1]
    buffer = np.empty(GROUP, np.uint32)
    for job in range(first, last):
        for group in range((count + GROUP - 1) // GROUP):
            fill_group(group, MINIBATCH, seeds[job], round, clients[job], buffer)
            base = group * GROUP
            for i in range(min(GROUP, count - base)):
                out[job, base + i] = (uint64(buffer[i]) * uint64(sizes[job])) >> uint64(32)
