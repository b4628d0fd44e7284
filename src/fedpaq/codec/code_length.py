"""Code length: what adaptive integers would cost, computed on whole arrays and without encoding.

Nothing in the model depends on bytes sent, only on integers passed, so every decision of a message can
be listed at once. Sorted by context, the states follow from prefix sums: ``count`` depends on how many
decisions its context has seen, and ``ones`` is a running sum, restarted where the model halves it.
NumPy alone; exact but for the rounding of logarithms.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

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
    States,
)

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Decisions:
    """Binary decisions: whose they are, their context and outcome; in order within a context."""

    owners: Int64
    contexts: Int64
    bits: Int64


def bit_length(values: Int64) -> Int64:
    """Return the bit length of each integer below 2^53."""
    return np.frexp(values.astype(np.float64))[1].astype(np.int64)


def integer_decisions(owners: Int64, base: int, means: Int64, values: Int64) -> tuple[list[Decisions], Float64]:
    """Return the decisions that code the integers, and the raw bits of each."""
    orders = np.maximum(bit_length(means) - 3, 0)
    octaves = np.minimum(orders, ROWS // 4 - 2)
    rows = np.where(means < 4, means, 4 * octaves + (means >> orders))
    steps = bit_length((values >> orders) + 1) - 1
    contexts = base + rows * ROW_SIZE
    flags = _flags(owners, contexts, steps)
    exponents = orders + steps
    offsets = values - (((1 << steps) - 1) << orders)
    contexts = contexts + np.minimum(steps, STEPS - 1) * NODES
    nodes = [_node(owners, contexts, exponents, offsets, depth) for depth in range(3)]
    return [flags, *nodes], np.maximum(exponents - 3, 0).astype(np.float64)


def _flags(owners: Int64, contexts: Int64, steps: Int64) -> Decisions:
    """One decision for each step passed, and one for the step that holds the integer."""
    runs = steps + 1
    owner = np.repeat(np.arange(len(steps)), runs)
    step = np.arange(len(owner)) - np.repeat(np.cumsum(runs) - runs, runs)
    bits = (step < steps[owner]).astype(np.int64)
    return Decisions(owners[owner], contexts[owner] + np.minimum(step, STEPS - 1) * NODES, bits)


def _node(owners: Int64, contexts: Int64, exponents: Int64, offsets: Int64, depth: int) -> Decisions:
    """Bit ``depth`` of the offset, where there is one; its node holds the bits above it."""
    some = exponents > depth
    shifts, offsets = exponents[some] - 1 - depth, offsets[some]
    nodes = (1 << depth) + (offsets >> (shifts + 1))
    return Decisions(owners[some], contexts[some] + nodes, offsets >> shifts & 1)


def total_bits(decisions: list[Decisions], initial: States, num_owners: int) -> Float64:
    """Return the bits of each owner's decisions; each owner has states of its own."""
    owners = np.concatenate([part.owners for part in decisions])
    contexts = np.concatenate([part.contexts for part in decisions])
    bits = np.concatenate([part.bits for part in decisions])
    order = np.argsort(owners * len(initial) + contexts, kind="stable")
    owners, contexts, bits = owners[order], contexts[order], bits[order]
    probability = _probabilities(owners * len(initial) + contexts, bits, initial[contexts].astype(np.int64))
    chosen = np.where(bits == 1, probability, 65536 - probability)
    lengths: Float64 = np.bincount(owners, weights=16 - np.log2(chosen), minlength=num_owners)  # type: ignore[assignment]
    return lengths


def _probabilities(keys: Int64, bits: Int64, first: Int64) -> Int64:
    """Return P(one), of 65536, before each decision; ``keys`` is sorted, ``first`` the initial states."""
    if not len(keys):
        return np.zeros(0, np.int64)
    counts, runs = _counts(keys, first)
    edges = np.flatnonzero(np.r_[True, (keys[1:] != keys[:-1]) | (runs[1:] != runs[:-1])])
    run_of = np.repeat(np.arange(len(edges)), np.diff(np.r_[edges, len(keys)]))
    before = np.cumsum(bits) - bits
    at_edge = _ones_at_edges(runs[edges], np.add.reduceat(bits, edges), first[edges] >> COUNT_BITS)
    ones = at_edge[run_of] + ONE * (before - before[edges][run_of])
    probability: Int64 = ones * RECIPROCALS[counts] >> 15
    return np.clip(probability, LEAST_PROBABILITY, 65536 - LEAST_PROBABILITY)


def _counts(keys: Int64, first: Int64) -> tuple[Int64, Int64]:
    """Return the count before each decision and how often it was halved in its context."""
    starts = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]])
    seen = np.arange(len(keys)) - np.repeat(starts, np.diff(np.r_[starts, len(keys)]))
    counts = (first & ((1 << COUNT_BITS) - 1)) + seen
    half = MAX_COUNT // 2  # a first run lasts until the count is 1024, later ones for 512 decisions
    runs = np.maximum(counts - half, 0) // half
    return counts - runs * half, runs


def _ones_at_edges(runs: Int64, sums: Int64, first: Int64) -> Int64:
    """Return ``ones`` at the start of each run: halved from the run before, or the initial one."""
    ones = first.copy()
    for index in np.flatnonzero(runs > 0):  # a run before is always the row before
        ones[index] = (ones[index - 1] + ONE * sums[index - 1]) >> 1
    return ones
