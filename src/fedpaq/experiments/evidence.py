"""Evidence: the comparisons of one figure's curves that the paper's claims rest on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fedpaq.cost_model import CostModel
from fedpaq.experiments import judging
from fedpaq.experiments.curve import Curve, Curves
from fedpaq.experiments.figures import Figure
from fedpaq.experiments.judging import Finding, Ratio

Pair = tuple[Curve, Curve, tuple[str, str]]  # two curves of a panel and their labels
Measure = Callable[[Curve, Curve, tuple[str, str], str, CostModel], list[Ratio]]


@dataclass(frozen=True)
class Evidence:
    """One figure's curves, seen under one count of bits."""

    figure: Figure
    curves: Curves
    accounting: str

    def losses(self, panel: str, first: str, seconds: list[str]) -> list[Ratio]:
        """Compare the final losses of curves of a panel with that of its curve ``first``."""
        return [ratio for pair in self._pairs(panel, first, seconds) for ratio in judging.final_loss(*pair)]

    def times(self, measure: Measure, panel: str, first: str, seconds: list[str]) -> list[Ratio]:
        """Compare modelled times of curves of a panel with those of its curve ``first``."""
        cost_model = self.figure.cost_model
        return [
            ratio
            for pair in self._pairs(panel, first, seconds)
            for ratio in measure(*pair, self.accounting, cost_model)
        ]

    def _pairs(self, panel: str, first: str, seconds: list[str]) -> Iterator[Pair]:
        settings = self.figure.panel(panel).curves
        for second in seconds:
            pair = self.curves[settings[first]], self.curves[settings[second]]
            seeds = min(curve.num_seeds for curve in pair)  # those that both have
            yield pair[0].first(seeds), pair[1].first(seeds), (first, second)


def quantizing_costs(evidence: Evidence) -> Finding:
    """The loss after T steps, s = 1 against no quantization."""
    found = evidence.losses("levels", "no quantization", ["s = 1"])
    return judging.all_above(found)


def fewer_clients_cost(evidence: Evidence) -> Finding:
    """The loss after T steps, r = 5 against r = 50."""
    found = evidence.losses("clients", "r = 50", ["r = 5"])
    return judging.all_above(found)


def fewer_rounds_cost(evidence: Evidence) -> Finding:
    """The loss after T steps, τ = 50 against τ = 1."""
    found = evidence.losses("steps", "τ = 1", ["τ = 50"])
    return judging.all_above(found)


def quantizing_is_faster(evidence: Evidence) -> Finding:
    """Times to every level, no quantization against each s."""
    found = [
        ratio
        for levels in ("s = 1", "s = 5", "s = 10")
        for ratio in evidence.times(judging.times_at_levels, "levels", levels, ["no quantization"])
    ]
    return judging.all_above(found)


def clients_matter(evidence: Evidence) -> Finding:
    """Mean times, other r against r = 25."""
    found = evidence.times(judging.mean_time, "clients", "r = 25", ["r = 5", "r = 10", "r = 50"])
    return judging.some_differ(found)


def few_steps_are_slower(evidence: Evidence) -> Finding:
    """Mean times, τ = 1 and 2 against τ = 10."""
    found = evidence.times(judging.mean_time, "steps", "τ = 10", ["τ = 1", "τ = 2"])
    return judging.all_above(found)


def many_steps_run_faster(evidence: Evidence) -> Finding:
    """Times for all T steps, every smaller τ against τ = 50."""
    others = ["τ = 1", "τ = 2", "τ = 5", "τ = 10", "τ = 20"]
    found = evidence.times(judging.total_time, "steps", "τ = 50", others)
    return judging.all_above(found)


def many_steps_are_less_accurate(evidence: Evidence) -> Finding:
    """The loss after T steps, τ = 50 against τ = 1, 2 and 10."""
    found = [ratio for steps in ("τ = 1", "τ = 2", "τ = 10") for ratio in evidence.losses("steps", steps, ["τ = 50"])]
    return judging.all_above(found)


def ten_steps_are_best(evidence: Evidence) -> Finding:
    """Mean times, every other τ against τ = 10, a tie allowed."""
    others = ["τ = 1", "τ = 2", "τ = 5", "τ = 20", "τ = 50"]
    found = evidence.times(judging.mean_time, "steps", "τ = 10", others)
    return judging.all_above(found, 1 / judging.TIE)


def steps_trade_off(evidence: Evidence) -> Finding:
    """The mean time of τ = 1 and the final loss of τ = 50, each against τ = 10."""
    slow = evidence.times(judging.mean_time, "steps", "τ = 10", ["τ = 1"])
    coarse = evidence.losses("steps", "τ = 10", ["τ = 50"])
    return judging.all_above(slow + coarse)


def fedpaq_is_first(evidence: Evidence) -> Finding:
    """Times to every level, FedAvg and QSGD against FedPAQ."""
    found = evidence.times(judging.times_at_levels, "methods", "FedPAQ", ["FedAvg", "QSGD"])
    return judging.all_above(found)
