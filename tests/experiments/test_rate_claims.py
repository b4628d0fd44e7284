"""Rate claims: planted curves get the verdict they deserve."""

from __future__ import annotations

import pytest

from fedpaq.experiments import PLOTS, RATE_CLAIMS, judge_rates
from fedpaq.experiments.rates import LABELS
from small_figure import planted


def judged(name, last):
    """Judge a plot whose curves end at the losses ``last`` (1 where none is given), with noise of 0.1 %."""
    plot = PLOTS[name]
    curves = {}
    for label, setting in plot.panels[0].curves.items():
        factor = (last.get(label, 1.0) / 2.0) ** (1 / setting.num_rounds)
        curves[setting] = planted(setting, factor, noise=1e-3, problem=plot.problem)
    return {entry["claim"]: entry["judged"]["payload"] for entry in judge_rates(plot, curves)}


def test_every_plot_is_judged_and_nothing_is_left_blank():
    assert {name for claim in RATE_CLAIMS for name in claim.figures} == set(PLOTS)
    assert all(claim.sentence and claim.criterion and not claim.needs_time for claim in RATE_CLAIMS)


@pytest.mark.parametrize(("loss", "verdict"), [(0.9, "holds"), (1.1, "does not hold"), (1.0, "undecided")])
def test_ten_levels_for_the_bytes_of_one(loss, verdict):
    found = judged("rates-cifar100", {LABELS[0]: loss})["quality-of-ten-levels-for-the-bytes-of-one"]
    assert found["verdict"] == verdict
    assert found["decisive"]["value"] == pytest.approx(1 / loss, rel=0.005)


@pytest.mark.parametrize(("loss", "verdict"), [(1.004, "holds"), (1.02, "does not hold")])
@pytest.mark.parametrize(
    ("claim", "label"),
    [
        ("quality-of-five-levels-for-the-bytes-of-one", LABELS[0]),
        ("quality-of-float32-for-the-bytes-of-five-levels", LABELS[1]),
    ],
)
def test_a_hundredth_is_allowed(claim, label, loss, verdict):
    assert judged("rates-fashion", {label: loss})[claim]["verdict"] == verdict


def test_lower_at_equal_bytes_needs_all_three_rates():
    better = dict.fromkeys(LABELS, 0.9)
    assert judged("rates-mnist", better)["lower-loss-at-equal-bytes"]["verdict"] == "holds"
    found = judged("rates-mnist", {**better, LABELS[2]: 1.1})["lower-loss-at-equal-bytes"]
    assert found["verdict"] == "does not hold" and "s = 10" in found["decisive"]["what"]
    assert len(found["ratios"]) == 3
