"""Evidence: the comparisons of one figure's curves that the paper's claims rest on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fedpaq.cost_model import CostModel
from fedpaq.experiments import judging
from fedpaq.experiments.curve import Curve
from fedpaq.experiments.figures import Figure, Setting
from fedpaq.experiments.judging import Finding, Ratio

Curves = Mapping[Setting, Curve]


@dataclass(frozen=True)
class Evidence:
    """One figure's curves, seen under one count of bits."""

    figure: Figure
    curves: Curves
    accounting: str

    def ratios(
        self, panel: str, first: str, seconds: list[str], measure: Callable[..., list[Ratio]]
    ) -> list[Ratio]:
        """Measure curves of a panel against its curve ``first``."""
        settings = self.figure.panel(panel).curves
        cost_model = CostModel.from_ratio(self.figure.ratio)
        extra = () if measure is judging.final_loss else (self.accounting, cost_model)
        return [
            ratio
            for second in seconds
            for ratio in measure(
                self.curves[settings[first]], self.curves[settings[second]], (first, second), *extra
            )
        ]


def quantizing_costs(evidence: Evidence) -> Finding:
    """The loss after T steps, s = 1 against no quantization."""
    found = evidence.ratios("levels", "no quantization", ["s = 1"], judging.final_loss)
    return judging.all_above(found)


def fewer_clients_cost(evidence: Evidence) -> Finding:
    """The loss after T steps, r = 5 against r = 50."""
    found = evidence.ratios("clients", "r = 50", ["r = 5"], judging.final_loss)
    return judging.all_above(found)


def fewer_rounds_cost(evidence: Evidence) -> Finding:
    """The loss after T steps, τ = 50 against τ = 1."""
    found = evidence.ratios("steps", "τ = 1", ["τ = 50"], judging.final_loss)
    return judging.all_above(found)


def quantizing_is_faster(evidence: Evidence) -> Finding:
    """Times to every level, no quantization against each s."""
    found = [
        ratio
        for levels in ("s = 1", "s = 5", "s = 10")
        for ratio in evidence.ratios("levels", levels, ["no quantization"], judging.times_at_levels)
    ]
    return judging.all_above(found)


def clients_matter(evidence: Evidence) -> Finding:
    """Mean times, other r against r = 25."""
    found = evidence.ratios("clients", "r = 25", ["r = 5", "r = 10", "r = 50"], judging.mean_time)
    return judging.some_differ(found)


def few_steps_are_slower(evidence: Evidence) -> Finding:
    """Mean times, τ = 1 and 2 against τ = 10."""
    found = evidence.ratios("steps", "τ = 10", ["τ = 1", "τ = 2"], judging.mean_time)
    return judging.all_above(found)


def many_steps_run_faster(evidence: Evidence) -> Finding:
    """Times for all T steps, every smaller τ against τ = 50."""
    others = ["τ = 1", "τ = 2", "τ = 5", "τ = 10", "τ = 20"]
    found = evidence.ratios("steps", "τ = 50", others, judging.total_time)
    return judging.all_above(found)


def many_steps_are_less_accurate(evidence: Evidence) -> Finding:
    """The loss after T steps, τ = 50 against τ = 1, 2 and 10."""
    found = [
        ratio
        for steps in ("τ = 1", "τ = 2", "τ = 10")
        for ratio in evidence.ratios("steps", steps, ["τ = 50"], judging.final_loss)
    ]
    return judging.all_above(found)


def ten_steps_are_best(evidence: Evidence) -> Finding:
    """Mean times, every other τ against τ = 10, a tie allowed."""
    others = ["τ = 1", "τ = 2", "τ = 5", "τ = 20", "τ = 50"]
    found = evidence.ratios("steps", "τ = 10", others, judging.mean_time)
    return judging.all_above(found, 1 / judging.TIE)


def steps_trade_off(evidence: Evidence) -> Finding:
    """The mean time of τ = 1 and the final loss of τ = 50, each against τ = 10."""
    slow = evidence.ratios("steps", "τ = 10", ["τ = 1"], judging.mean_time)
    coarse = evidence.ratios("steps", "τ = 10", ["τ = 50"], judging.final_loss)
    return judging.all_above(slow + coarse)


def fedpaq_is_first(evidence: Evidence) -> Finding:
    """Times to every level, FedAvg and QSGD against FedPAQ."""
    found = evidence.ratios("methods", "FedPAQ", ["FedAvg", "QSGD"], judging.times_at_levels)
    return judging.all_above(found)
