"""Decisions: the blocks and bits of many updates, by machine code where they are clear, else by ``plans``."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedpaq.arrays import Float32, Float64, Int32, Int64
from fedpaq.kernels import numba as compiled
from fedpaq.quantizers.rotated import plans
from fedpaq.quantizers.rotated.allocation import EXCESS, NEWTON_STEPS, SCALE_BITS, SPARSE_RATE, gaussian_curve, kept
from fedpaq.quantizers.rotated.message import MOST_MANTISSA_BITS
from fedpaq.quantizers.rotated.rotation import Blocks
from fedpaq.quantizers.rotated.sketch import GUESS, LEAST_MANTISSA_BITS

COARSE, FINE = 1e-2, 1e-4  # tolerances of ``plans.expected_errors`` and ``plans.roundings``


@dataclass(frozen=True, eq=False)
class Decisions:
    """What is decided of each update; arrays of blocks are as wide as the most, the rest is arbitrary.

    All is the twin's to the bit but for the last bits of ``errors``, and of ``least`` where it is a guess.
    """

    best: Int64  # the number of the cut
    errors: Float64
    mantissa_bits: Int64
    factors: Float32  # (updates, blocks)
    wanted: Int32
    least: Float32


def decide(cuts: Sequence[Blocks], energies: Float64, firsts: Sequence[int], totals: Float64, bits: float) -> Decisions:
    """Plan updates; the blocks of cut c have the energies (updates, columns) from column ``firsts[c]`` on."""
    updates, width = len(totals), max(cut.count for cut in cuts)
    found = Decisions(
        np.zeros(updates, np.int64), np.zeros(updates), np.zeros(updates, np.int64),
        np.ones((updates, width), np.float32), np.zeros((updates, width), np.int32),
        np.zeros((updates, width), np.float32),
    )  # fmt: skip
    kernels = compiled.load("plans")
    if kernels is None:
        _decide_closely(found, np.arange(updates), cuts, energies, firsts, totals, bits)
        return found
    lefts = np.array([bits - SCALE_BITS * (cut.count - 1) for cut in cuts])
    mantissas, close = np.empty(updates), np.empty(updates, np.bool_)
    kernels.plan(
        energies, totals, np.array(firsts), np.array([cut.count for cut in cuts]),
        np.array([cut.size for cut in cuts]), lefts, np.array([kept(cut) for cut in cuts]),
        np.array([cut.growth for cut in cuts]), np.stack(gaussian_curve()),
        (COARSE, FINE, EXCESS, float(GUESS), SPARSE_RATE), NEWTON_STEPS,
        found.best, found.errors, mantissas, found.factors, found.wanted, found.least, close,
    )  # fmt: skip
    with np.errstate(invalid="ignore"):
        rounded = np.clip(np.rint(mantissas), LEAST_MANTISSA_BITS, MOST_MANTISSA_BITS)
        found.mantissa_bits[:] = rounded.astype(np.int64)
    _decide_closely(found, np.flatnonzero(close), cuts, energies, firsts, totals, bits)
    return found


def parts_of(energies: Float64, rows: Int64, cuts: Sequence[Blocks], firsts: Sequence[int]) -> list[Float64]:
    """Return for each cut the energies of its blocks in some updates, contiguous: (rows, blocks)."""
    pairs = zip(firsts, cuts, strict=True)
    return [np.ascontiguousarray(energies[rows, first : first + cut.count]) for first, cut in pairs]


def _decide_closely(
    found: Decisions, rows: Int64, cuts: Sequence[Blocks], energies: Float64, firsts: Sequence[int],
    totals: Float64, bits: float,
) -> None:  # fmt: skip
    """Let the twin decide about some rows."""
    if not rows.size:
        return
    parts = parts_of(energies, rows, cuts, firsts)
    found.best[rows], found.errors[rows] = plans.best_cuts(cuts, parts, totals[rows], bits)
    for number, cut in enumerate(cuts):
        at = np.flatnonzero(found.best[rows] == number)
        if at.size:
            chosen = rows[at]
            rounding = plans.roundings(cut, parts[number][at], found.errors[chosen], bits)
            found.mantissa_bits[chosen] = rounding.mantissa_bits
            found.factors[chosen, : cut.count] = rounding.factors
            found.wanted[chosen, : cut.count] = rounding.wanted
            found.least[chosen, : cut.count] = rounding.least
