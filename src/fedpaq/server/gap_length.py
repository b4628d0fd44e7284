"""Gap length: the bits of the gap code for many messages at once, on the device where their levels are.

Twin: ``fedpaq.codec.estimate`` and ``code_length``, which say what is computed and why. Logarithms are
summed as integers (2^-20 bits), so that the order in which a GPU adds them does not matter.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedpaq.codec import gap_code
from fedpaq.codec.adaptive_integers import (
    COUNT_BITS,
    LEAST_PROBABILITY,
    MAX_COUNT,
    NODES,
    ONE,
    RECIPROCALS,
    ROW_SIZE,
    ROWS,
    STEPS,
)

FIXED = 2**20  # one bit
HALF = MAX_COUNT // 2


@dataclass(frozen=True)
class Tables:
    """The code's constants on a device."""

    states: Tensor  # initial state of each context
    reciprocals: Tensor
    costs: Tensor  # (65537,) bits of an outcome of probability i / 65536, in 1 / FIXED


@functools.cache
def tables(device: torch.device) -> Tables:
    """Return the constants, copied to ``device`` once."""
    probability = np.maximum(np.arange(65_537), 1)
    costs = np.rint((16 - np.log2(probability)) * FIXED).astype(np.int64)
    host = (gap_code.initial_states().astype(np.int64), RECIPROCALS, costs)
    return Tables(*(torch.from_numpy(values).to(device) for values in host))


def gap_bits(owners: Tensor, positions: Tensor, values: Tensor, counts: Tensor, dimension: int) -> Tensor:
    """Return the bits (jobs,) of each message's gaps and signs; its non-zeros lie together, in order."""
    index = torch.arange(len(owners), device=owners.device) - (counts.cumsum(0) - counts)[owners]
    before = torch.where(index > 0, positions.roll(1), -1)
    gaps = positions - before - 1
    means = _gap_means(index, positions, before, counts[owners] - index, dimension)
    parts, raw = _integer_decisions(owners, gap_code.GAPS_AT, means, gaps)
    return _total_bits([*parts, _signs(owners, index, gaps, values)], raw, owners, len(counts))


def magnitude_bits(owners: Tensor, values: Tensor, counts: Tensor, guess: int) -> Tensor:
    """Return the bits (jobs,) of each message's magnitudes."""
    at = torch.arange(len(owners), device=owners.device)
    seen = (at - (counts.cumsum(0) - counts)[owners]).clamp_(max=gap_code.MAGNITUDE_WINDOW)
    excesses = values.abs() - 1
    sums = torch.nn.functional.pad(excesses.cumsum(0), (1, 0))
    means = sums[at] - sums[at - seen] + (gap_code.MAGNITUDE_WINDOW - seen) * guess
    parts, raw = _integer_decisions(owners, gap_code.MAGNITUDES_AT, means, excesses)
    return _total_bits(parts, raw, owners, len(counts))


def _gap_means(index: Tensor, positions: Tensor, before: Tensor, left: Tensor, dimension: int) -> Tensor:
    seen = index.clamp(max=gap_code.GAP_WINDOW)
    at = (torch.arange(len(index), device=index.device) - 1 - seen).clamp_(min=0)
    oldest = torch.where(index > seen, positions[at], -1)
    zeros = before - oldest - seen
    remaining = ((dimension - before - 1 - left) << 4) // (left + 1)
    return ((zeros << 4) + (2 * gap_code.GAP_WINDOW - seen) * remaining) >> 6


Decisions = tuple[Tensor, Tensor, Tensor]  # owners, contexts, bits


def _signs(owners: Tensor, index: Tensor, gaps: Tensor, values: Tensor) -> Decisions:
    signs = (values > 0).long()
    last = torch.where(index > 0, signs.roll(1), 0)
    last_but_one = torch.where(index > 1, signs.roll(2), 0)
    near = torch.where(gaps == 0, 0, torch.where(gaps < 3, 1, 2))
    return owners, 4 * near + 2 * last + last_but_one, signs


def _bit_length(values: Tensor) -> Tensor:
    return torch.frexp(values.double())[1].long()


def _integer_decisions(
    owners: Tensor, base: int, means: Tensor, values: Tensor
) -> tuple[list[Decisions], Tensor]:
    orders = (_bit_length(means) - 3).clamp_(min=0)
    octaves = orders.clamp(max=ROWS // 4 - 2)
    rows = torch.where(means < 4, means, 4 * octaves + (means >> orders))
    steps = _bit_length((values >> orders) + 1) - 1
    contexts = base + rows * ROW_SIZE
    flags = _flags(owners, contexts, steps)
    exponents = orders + steps
    offsets = values - (((1 << steps) - 1) << orders)
    contexts = contexts + steps.clamp(max=STEPS - 1) * NODES
    nodes = [_node(owners, contexts, exponents, offsets, depth) for depth in range(3)]
    return [flags, *nodes], (exponents - 3).clamp_(min=0)


def _flags(owners: Tensor, contexts: Tensor, steps: Tensor) -> Decisions:
    runs = steps + 1
    owner = torch.repeat_interleave(runs)
    step = torch.arange(len(owner), device=owner.device) - (runs.cumsum(0) - runs)[owner]
    bits = (step < steps[owner]).long()
    return owners[owner], contexts[owner] + step.clamp(max=STEPS - 1) * NODES, bits


def _node(owners: Tensor, contexts: Tensor, exponents: Tensor, offsets: Tensor, depth: int) -> Decisions:
    some = (exponents > depth).nonzero()[:, 0]
    shifts, offsets = exponents[some] - 1 - depth, offsets[some]
    nodes = (1 << depth) + (offsets >> (shifts + 1))
    return owners[some], contexts[some] + nodes, offsets >> shifts & 1


def _total_bits(decisions: list[Decisions], raw: Tensor, raw_owners: Tensor, jobs: int) -> Tensor:
    owners, contexts, bits = (torch.cat(parts) for parts in zip(*decisions, strict=True))
    constants = tables(owners.device)
    keys, order = torch.sort(owners * len(constants.states) + contexts, stable=True)
    owners, contexts, bits = keys // len(constants.states), keys % len(constants.states), bits[order]
    probability = _probabilities(keys, bits, constants.states[contexts], constants.reciprocals)
    chosen = torch.where(bits == 1, probability, 65_536 - probability)
    total = torch.zeros(jobs, dtype=torch.int64, device=owners.device)
    total.index_add_(0, owners, constants.costs[chosen])
    total.index_add_(0, raw_owners, raw * FIXED)
    return total.double() / FIXED


def _probabilities(keys: Tensor, bits: Tensor, first: Tensor, reciprocals: Tensor) -> Tensor:
    at = torch.arange(len(keys), device=keys.device)
    fresh = torch.ones_like(keys, dtype=torch.bool)
    fresh[1:] = keys[1:] != keys[:-1]
    seen = at - torch.where(fresh, at, 0).cummax(0)[0]
    counts = (first & ((1 << COUNT_BITS) - 1)) + seen
    runs = (counts - HALF).clamp_(min=0) // HALF
    counts = counts - runs * HALF
    fresh[1:] |= runs[1:] != runs[:-1]
    edges = fresh.nonzero()[:, 0]
    before = bits.cumsum(0) - bits
    total = torch.nn.functional.pad(before[edges], (0, 1), value=int(bits.sum()))
    at_edge = _ones_at_edges(runs[edges], total.diff(), first[edges] >> COUNT_BITS)
    run_of = fresh.cumsum(0) - 1
    ones = at_edge[run_of] + ONE * (before - before[edges][run_of])
    probability = ones * reciprocals[counts] >> 15
    return probability.clamp_(LEAST_PROBABILITY, 65_536 - LEAST_PROBABILITY)


def _ones_at_edges(runs: Tensor, sums: Tensor, first: Tensor) -> Tensor:
    ones = first.clone()
    for run in range(1, int(runs.max()) + 1 if len(runs) else 0):  # only long messages reach a second run
        at = (runs == run).nonzero()[:, 0]
        ones[at] = (ones[at - 1] + ONE * sums[at - 1]) >> 1
    return ones
