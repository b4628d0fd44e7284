"""Sums of stretches of rows on the GPU, added in NumPy's order.

NumPy halves a stretch until at most 128 numbers are left, halves being multiples of eight; these are added by
eight lanes, the lanes two by two, what is left over one by one. ``np.add.reduceat`` keeps the first number
apart and adds the sum of the others to it.
"""

# Triton types the kernels itself when it compiles them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

LEAF = 128  # numbers that are not halved any more
LEAVES = 16  # leaves per program


@triton.jit(do_not_specialize=["count", "chunks"])
def leaves_kernel(values, starts, lengths, sums, stride, count, chunks, sums_stride, LEAVES: tl.constexpr):
    """Add up some leaves of one row: eight lanes, then the rest."""
    row, chunk = (tl.program_id(0) // chunks).to(tl.int64), tl.program_id(0) % chunks
    leaf = chunk * LEAVES + tl.arange(0, LEAVES)
    start = tl.load(starts + leaf, mask=leaf < count, other=0)
    length = tl.load(lengths + leaf, mask=leaf < count, other=0)
    here = values + row * stride + start
    whole = length // 8
    lanes = tl.zeros([LEAVES, 8], tl.float64)
    for step in range(16):
        at = here[:, None] + step * 8 + tl.arange(0, 8)[None, :]
        lanes += tl.load(at, mask=step < whole[:, None], other=0.0)
    lanes = tl.sum(tl.reshape(lanes, (LEAVES, 4, 2)), axis=2)
    lanes = tl.sum(tl.reshape(lanes, (LEAVES, 2, 2)), axis=2)
    total = tl.sum(lanes, axis=1)
    for step in range(7):
        at = whole * 8 + step
        total += tl.load(here + at, mask=at < length, other=0.0)
    tl.store(sums + row * sums_stride + leaf, total, mask=leaf < count)


class Stretches:
    """The tree of sums of some stretches (start, stop, whether the first number is kept apart) of a row."""

    def __init__(self, stretches: Sequence[tuple[int, int, bool]], device: torch.device) -> None:
        leaves: list[tuple[int, int]] = []
        levels: list[list[tuple[object, object]]] = []

        def add(start: int, length: int) -> tuple[int, int]:
            """Return the height and the place of the node that sums this stretch."""
            if length <= LEAF:
                leaves.append((start, length))
                return 0, len(leaves) - 1
            half = length // 2
            half -= half % 8
            left, right = add(start, half), add(start + half, length - half)
            height = max(left[0], right[0]) + 1
            while len(levels) < height:
                levels.append([])
            levels[height - 1].append((left, right))
            return height, len(levels[height - 1]) - 1

        firsts, roots = [], []
        for start, stop, apart in stretches:
            firsts.append(start if apart else -1)
            roots.append(add(start + apart, stop - start - apart))
        bases = [0, len(leaves)]
        for level in levels:
            bases.append(bases[-1] + len(level))

        def places(nodes: Sequence[object]) -> Tensor:
            return torch.tensor([bases[n[0]] + n[1] for n in nodes], dtype=torch.int64, device=device)  # type: ignore[index]

        self._starts, self._lengths = (
            torch.tensor([leaf[i] for leaf in leaves], dtype=torch.int32, device=device) for i in range(2)
        )
        self._pairs = [(places([a for a, _ in level]), places([b for _, b in level])) for level in levels]
        self._bases, self._roots = bases, places(roots)
        self._firsts = torch.tensor(firsts, dtype=torch.int64, device=device)

    def sums(self, values: Tensor) -> Tensor:
        """Return the sums of each row (rows, n) float64, none negative: (rows, stretches)."""
        rows, count = len(values), len(self._starts)
        nodes = torch.empty(rows, self._bases[-1], dtype=torch.float64, device=values.device)
        chunks = triton.cdiv(count, LEAVES)
        leaves_kernel[(rows * chunks,)](
            values, self._starts, self._lengths, nodes, values.stride(0), count, chunks, nodes.stride(0),
            LEAVES, num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
        for (one, other), base in zip(self._pairs, self._bases[1:], strict=False):
            nodes[:, base : base + len(one)] = nodes[:, one] + nodes[:, other]
        first = values[:, self._firsts.clamp(min=0)] * (self._firsts >= 0)
        return first + nodes[:, self._roots]


@functools.cache
def stretches(cuts: tuple[tuple[int, int, bool], ...], device: torch.device) -> Stretches:
    """Return the tree of some stretches; made once."""
    return Stretches(cuts, device)
