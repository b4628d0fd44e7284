"""Judging: the statistics behind a verdict.

Two curves are compared at their common loss levels. With f_0 the initial loss and f_low the lowest
loss that every run of both curves reaches, the levels are  f_0 (f_low / f_0)^(j/5),  j = 1..5. The
time to a level is that of the first round whose loss is at or below it: between rounds the server
has no model. Seeds are paired, since runs with one seed share each client's computation times and,
where r agrees, the clients drawn; a ratio's interval is Student's t on the log ratios of the
seeds that both curves have, at 95 %. These were fixed before any curve was run.

A ratio is open while its interval holds the threshold that decides. A claim that is undecided with all its open
ratios within 3 % of 1, or of the threshold, is a tie. Curves of a claim that is undecided, or a tie by ratios with
an interval beyond 5 %, get more seeds while there are more.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedpaq.arrays import Float64
from fedpaq.cost_model import CostModel
from fedpaq.experiments.curve import Curve
from fedpaq.experiments.figures import PaperSetting

NUM_LEVELS = 5
CONFIDENCE = 0.95
TIE = 1.05  # times within 5 % of each other count as tied
NEAR = 0.03  # an open ratio that close is a tie
HOLDS, FAILS, TIED, UNDECIDED = "holds", "does not hold", "tie", "undecided"


@dataclass(frozen=True)
class Ratio:
    """A ratio of the second curve's amount to the first's, with its confidence interval."""

    what: str
    value: float
    low: float
    high: float
    at: str = ""  # the level, where it is the time to one
    curves: tuple[PaperSetting, ...] = ()  # the two

    def is_near(self, threshold: float) -> bool:
        """Tell whether the ratio is within 3 % of 1 or of the threshold."""
        return any(abs(self.value / other - 1) <= NEAR for other in (1.0, threshold))

    def is_rough(self, threshold: float) -> bool:
        """Tell whether the interval reaches beyond 5 % around 1 and the threshold."""
        return self.low < min(1.0, threshold) / TIE or self.high > max(1.0, threshold) * TIE


def paired_ratio(what: str, first: Float64, second: Float64, *, at: str = "", curves: Sequence[Curve] = ()) -> Ratio:
    """Return the geometric mean over seeds of second / first with its interval: arrays (seeds,)."""
    logs = np.log(second / first)
    mean, half = logs.mean(), half_width(logs)
    low, value, high = np.exp([mean - half, mean, mean + half]).tolist()
    return Ratio(what, value, low, high, at, tuple(curve.settings.setting for curve in curves))


def half_width(values: Float64) -> float:
    """Return half of Student's interval around the mean over seeds; 0 for one seed, beyond which nothing is known."""
    from scipy import stats

    count = len(values)
    if count < 2:
        return 0.0
    return float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1) * values.std(ddof=1) / np.sqrt(count))


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
    for number, level in enumerate(common_levels(first, second), start=1):
        times = [time_to(curve, float(level), accounting, cost_model) for curve in (first, second)]
        at = f"level {number} of {NUM_LEVELS}, loss {level:.3g}"
        ratios.append(paired_ratio(f"time of {names[1]} / {names[0]}", *times, at=at, curves=(first, second)))
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
    return [paired_ratio(what, np.exp(logs[0]), np.exp(logs[1]), curves=(first, second))]


def total_time(
    first: Curve, second: Curve, names: tuple[str, str], accounting: str, cost_model: CostModel
) -> list[Ratio]:
    """Return how many times longer the second curve takes for all T local steps."""
    totals = [curve.axis("seconds", accounting, cost_model)[:, -1] for curve in (first, second)]
    what = f"time for all {first.settings.total_steps} steps, {names[1]} / {names[0]}"
    return [paired_ratio(what, *totals, curves=(first, second))]


def final_loss(first: Curve, second: Curve, names: tuple[str, str]) -> list[Ratio]:
    """Return the ratio of the losses after all T local steps."""
    what = f"loss after {first.settings.total_steps} steps, {names[1]} / {names[0]}"
    return [paired_ratio(what, first.loss[:, -1], second.loss[:, -1], curves=(first, second))]


@dataclass(frozen=True)
class Finding:
    """A verdict, the ratios it rests on, the one that decided it, and those that more seeds would settle."""

    verdict: str
    ratios: tuple[Ratio, ...]
    decisive: Ratio | None
    unsettled: tuple[Ratio, ...] = ()


def all_above(ratios: Sequence[Ratio], bound: float = 1.0) -> Finding:
    """Judge "every ratio exceeds ``bound``": one interval below refutes it, all above confirm it."""
    if not ratios:
        return Finding(UNDECIDED, (), None)
    lowest = min(ratios, key=lambda ratio: ratio.high)
    if lowest.high < bound:
        return Finding(FAILS, tuple(ratios), lowest)
    weakest = min(ratios, key=lambda ratio: ratio.low)
    if weakest.low > bound:
        return Finding(HOLDS, tuple(ratios), weakest)
    return _not_decided(ratios, [(ratio, bound) for ratio in ratios if ratio.low <= bound])


def some_differ(ratios: Sequence[Ratio]) -> Finding:
    """Judge "some ratio differs from 1 by more than a tie"."""
    if not ratios:
        return Finding(UNDECIDED, (), None)
    farthest = max(ratios, key=lambda ratio: max(ratio.low, 1 / ratio.high))
    if farthest.low > TIE or farthest.high < 1 / TIE:
        return Finding(HOLDS, tuple(ratios), farthest)
    either = [(ratio, TIE if ratio.value > 1 else 1 / TIE) for ratio in ratios]
    beyond = [(ratio, bound) for ratio, bound in either if ratio.high >= TIE or ratio.low <= 1 / TIE]
    if beyond:
        return _not_decided(ratios, beyond)
    return Finding(FAILS, tuple(ratios), max(ratios, key=lambda ratio: max(ratio.high, 1 / ratio.low)))


def _not_decided(ratios: Sequence[Ratio], open_ones: Sequence[tuple[Ratio, float]]) -> Finding:
    """Return a tie if all open ratios are near; the farthest of those that keep it open stands for it."""
    far = [pair for pair in open_ones if not pair[0].is_near(pair[1])]
    rough = [pair for pair in open_ones if pair[0].is_rough(pair[1])]
    shown = min(far or open_ones, key=lambda pair: pair[0].low)[0]
    unsettled = tuple(ratio for ratio, _ in {*far, *rough})
    return Finding(UNDECIDED if far else TIED, tuple(ratios), shown, unsettled)
