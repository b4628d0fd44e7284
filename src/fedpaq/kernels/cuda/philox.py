"""Philox 4x32-10 on the GPU; twin: ``fedpaq.randomness``."""

# Triton types the kernels itself when it compiles them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

GROUP = tl.constexpr(256)  # draws per group
LANES = tl.constexpr(64)  # blocks per group: draw 64 w + l of a group is word w of block l
MINIBATCH = tl.constexpr(2)  # Purpose.MINIBATCH
_M0, _M1 = tl.constexpr(0xD2511F53), tl.constexpr(0xCD9E8D57)
_W0, _W1 = tl.constexpr(0x9E3779B9), tl.constexpr(0xBB67AE85)


@triton.jit
def philox(c0, c1, c2, c3, k0, k1):
    """Return the four words of each block; all arguments uint32."""
    for _ in tl.static_range(10):
        high0, low0 = tl.umulhi(c0, _M0), c0 * _M0
        high1, low1 = tl.umulhi(c2, _M1), c2 * _M1
        c0 = high1 ^ c1 ^ k0
        c1 = low1
        c2 = high0 ^ c3 ^ k1
        c3 = low0
        k0 = k0 + _W0
        k1 = k1 + _W1
    return c0, c1, c2, c3


@triton.jit
def stream_words(blocks, purpose: tl.constexpr, seed, round, client):
    """Return the words of these blocks (below 2^32) of a stream; seed int64, round and client integers."""
    k0 = (seed & 0xFFFFFFFF).to(tl.uint32)
    k1 = ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32)
    c1, c2 = round.to(tl.uint32), client.to(tl.uint32)
    c3 = tl.full([1], purpose << 24, tl.uint32)
    return philox(blocks.to(tl.uint32), c1, c2, c3, k0, k1)


@triton.jit(do_not_specialize=["round", "count", "groups"])
def draw_samples_kernel(seeds, clients, indices, offsets, samples, round, count, groups):
    """Fill one group of one job's draws: samples[job, i] = the client's sample number at a uniform position."""
    job, group = (tl.program_id(0) // groups).to(tl.int64), tl.program_id(0) % groups
    client = tl.load(clients + job)
    start = tl.load(offsets + client)
    size = (tl.load(offsets + client + 1) - start).to(tl.uint64)
    lanes = tl.arange(0, LANES)
    words = stream_words(group * LANES + lanes, MINIBATCH, tl.load(seeds + job), round, client)
    for w in tl.static_range(4):
        draw = group * GROUP + w * LANES + lanes
        position = ((words[w].to(tl.uint64) * size) >> 32).to(tl.int64)
        inside = draw < count
        tl.store(samples + job * count + draw, tl.load(indices + start + position, mask=inside), mask=inside)


def draw_samples(indices: Tensor, offsets: Tensor, seeds: Tensor, round: int, clients: Tensor, samples: Tensor) -> None:
    """Fill ``samples`` (jobs, count) as ``clients.work.draw_samples`` would; all int64 on one device."""
    jobs, count = samples.shape
    groups = triton.cdiv(count, GROUP.value)
    draw_samples_kernel[(jobs * groups,)](seeds, clients, indices, offsets, samples, round, count, groups, num_warps=2)
