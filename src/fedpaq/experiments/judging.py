"""Judging: the statistics behind a verdict, fixed before any curve was run.

Two curves are compared at their common loss levels. With f_0 the initial loss and f_low the lowest
loss that every run of both curves reaches, the levels are  f_0 (f_low / f_0)^(j/5),  j = 1..5. The
time to a level is that of the first round whose loss is at or below it: between rounds the server
has no model. Seeds are paired, since runs with one seed share each client's computation times and,
where r agrees, the clients drawn; a ratio's interval is Student's t on the log ratios of the five
seeds, at 95 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedpaq.cost_model import CostModel
from fedpaq.experiments.curve import Curve

Float64 = npt.NDArray[np.float64]
NUM_LEVELS = 5
CONFIDENCE = 0.95
TIE = 1.05  # times within 5 % of each other count as tied
HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "undecided"


@dataclass(frozen=True)
class Ratio:
    """A ratio of the second curve's amount to the first's, with its confidence interval."""

    what: str
    value: float
    low: float
    high: float


def paired_ratio(what: str, first: Float64, second: Float64) -> Ratio:
    """Return the geometric mean over seeds of second / first with its interval: arrays (seeds,)."""
    from scipy import stats

    logs = np.log(second / first)
    mean, count = logs.mean(), len(logs)
    half = 0.0
    if count > 1:
        half = float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1)) * logs.std(ddof=1) / np.sqrt(count)
    low, value, high = np.exp([mean - half, mean, mean + half]).tolist()
    return Ratio(what, value, low, high)


def common_levels(first: Curve, second: Curve) -> Float64:
    """Return the loss levels both curves reach on every seed, from easy to hard."""
    start = float(first.loss[0, 0])
    lowest = max(float(curve.loss.min(axis=1).max()) for curve in (first, second))
    if not 0 < lowest < start:
        return np.zeros(0)
    return np.asarray(start * (lowest / start) ** (np.arange(1, NUM_LEVELS + 1) / NUM_LEVELS))


def time_to(curve: Curve, level: float, accounting: str, cost_model: CostModel) -> Float64:
    """Return each seed's modelled seconds until the loss is first at most ``level``: (seeds,)."""
    seconds = curve.axis("seconds", accounting, cost_model)
    # A hair above the level: the lowest level is a loss itself, seen through exp and log.
    first = (curve.loss <= level * (1 + 1e-9)).argmax(axis=1)
    return np.asarray(seconds[np.arange(len(first)), first])


def times_at_levels(
    first: Curve, second: Curve, names: tuple[str, str], accounting: str, cost_model: CostModel
) -> list[Ratio]:
    """Return, level by level, how many times longer the second curve takes than the first."""
    ratios = []
    for level in common_levels(first, second):
        times = [time_to(curve, float(level), accounting, cost_model) for curve in (first, second)]
        what = f"time of {names[1]} / {names[0]} to loss {level:.3g}"
        ratios.append(paired_ratio(what, *times))
    return ratios


def mean_time(
    first: Curve, second: Curve, names: tuple[str, str], accounting: str, cost_model: CostModel
) -> list[Ratio]:
    """Return the same as one number: the geometric mean over the common levels."""
    levels = common_levels(first, second)
    if not levels.size:
        return []
    logs = [
        np.mean([np.log(time_to(c, float(level), accounting, cost_model)) for level in levels], axis=0)
        for c in (first, second)
    ]
    what = f"time of {names[1]} / {names[0]}, mean over levels {levels[0]:.3g} to {levels[-1]:.3g}"
    return [paired_ratio(what, np.exp(logs[0]), np.exp(logs[1]))]


def total_time(
    first: Curve, second: Curve, names: tuple[str, str], accounting: str, cost_model: CostModel
) -> list[Ratio]:
    """Return how many times longer the second curve takes for all T local steps."""
    totals = [curve.axis("seconds", accounting, cost_model)[:, -1] for curve in (first, second)]
    return [paired_ratio(f"time for all {first.settings.total_steps} steps, {names[1]} / {names[0]}", *totals)]


def final_loss(first: Curve, second: Curve, names: tuple[str, str]) -> list[Ratio]:
    """Return the ratio of the losses after all T local steps."""
    what = f"loss after {first.settings.total_steps} steps, {names[1]} / {names[0]}"
    return [paired_ratio(what, first.loss[:, -1], second.loss[:, -1])]


@dataclass(frozen=True)
class Finding:
    """A verdict, the ratios it rests on, and the one that decided it."""

    verdict: str
    ratios: tuple[Ratio, ...]
    decisive: Ratio | None


def all_above(ratios: Sequence[Ratio], bound: float = 1.0) -> Finding:
    """Judge "every ratio exceeds ``bound``": one interval below refutes it, all above confirm it."""
    if not ratios:
        return Finding(UNDECIDED, (), None)
    lowest = min(ratios, key=lambda ratio: ratio.high)
    if lowest.high < bound:
        return Finding(FAILS, tuple(ratios), lowest)
    weakest = min(ratios, key=lambda ratio: ratio.low)
    return Finding(HOLDS if weakest.low > bound else UNDECIDED, tuple(ratios), weakest)


def some_differ(ratios: Sequence[Ratio]) -> Finding:
    """Judge "some ratio differs from 1 by more than a tie"."""
    if not ratios:
        return Finding(UNDECIDED, (), None)
    farthest = max(ratios, key=lambda ratio: max(ratio.low, 1 / ratio.high))
    widest = max(ratios, key=lambda ratio: max(ratio.high, 1 / ratio.low))
    if farthest.low > TIE or farthest.high < 1 / TIE:
        return Finding(HOLDS, tuple(ratios), farthest)
    tied = widest.low > 1 / TIE and widest.high < TIE
    return Finding(FAILS if tied else UNDECIDED, tuple(ratios), widest)
