"""Claims: every empirical sentence of Section 5 and the supplement, with the criterion that judges it.

The criteria were fixed before any curve was run. A claim about time is judged under all three counts of
uploaded bits; a claim about accuracy after T steps does not depend on the count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fedpaq.experiments import evidence
from fedpaq.experiments.curve import ACCOUNTINGS, Curves
from fedpaq.experiments.evidence import Evidence
from fedpaq.experiments.figures import FIGURES, Figure, PaperSetting
from fedpaq.experiments.judging import TIED, UNDECIDED, Finding, Ratio

ALL = tuple(FIGURES)
NETWORKS = tuple(name for name in FIGURES if name != "mnist")
SUPPLEMENT = ("cifar10-248k", "cifar100", "fashion")


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, its place, the figures it is about, and how it is judged."""

    name: str
    where: str
    sentence: str
    figures: tuple[str, ...]
    criterion: str
    judge: Callable[[Evidence], Finding]
    needs_time: bool = True  # False: the verdict is the same under all counts


_COST = (
    "This communication reduction however comes with a cost in reducing the convergence accuracy and hence "
    "requiring more iterations of the training."
)
_FASTER_LEVELS = "Each of s = 1, 5, 10 reaches every common loss level before no quantization."
_FIRST = "FedPAQ reaches every common loss level before FedAvg and before QSGD."
_EFFECT = "Mean time to the common levels with r = 5, 10 or 50 differs from that with r = 25 by over 5 %."
_BEST = "No other τ is faster than τ = 10 by over 5 % in mean time to the common levels."

CLAIMS = (
    Claim(
        "quantization-costs-accuracy",
        "Section 5",
        _COST + " [quantization]",
        ALL,
        "The loss after T steps is higher with s = 1 than without quantization.",
        evidence.quantizing_costs,
        needs_time=False,
    ),
    Claim(
        "partial-participation-costs-accuracy",
        "Section 5",
        _COST + " [partial participation]",
        ALL,
        "The loss after T steps is higher with r = 5 than with r = 50.",
        evidence.fewer_clients_cost,
        needs_time=False,
    ),
    Claim(
        "periodic-averaging-costs-accuracy",
        "Section 5",
        _COST + " [periodic averaging]",
        ALL,
        "The loss after T steps is higher with τ = 50 than with τ = 1.",
        evidence.fewer_rounds_cost,
        needs_time=False,
    ),
    Claim(
        "quantization-saves-time",
        "Section 5.1",
        "First plot demonstrates the relative training loss for different quantization levels s ∈ {1,5,10} "
        "and the case with no quantization which corresponds to the FedAvg method.",
        ("mnist",),
        _FASTER_LEVELS,
        evidence.quantizing_is_faster,
    ),
    Claim(
        "participation-matters",
        "Section 5.1",
        "In the second plot, (s,τ)=(1,5) are fixed [and r varies].",
        ("mnist",),
        _EFFECT,
        evidence.clients_matter,
    ),
    Claim(
        "few-local-steps-are-slower",
        "Section 5.1",
        "After T/τ rounds, smaller choices for τ (e.g. τ=1,2) result in slower convergence …",
        ("mnist",),
        "τ = 1 and τ = 2 each take longer than τ = 10 in mean time to the common levels.",
        evidence.few_steps_are_slower,
    ),
    Claim(
        "many-local-steps-run-faster",
        "Section 5.1",
        "… while the larger ones (e.g. τ=50) run faster …",
        ("mnist",),
        "All T steps take less time with τ = 50 than with any smaller τ.",
        evidence.many_steps_run_faster,
    ),
    Claim(
        "many-local-steps-are-less-accurate",
        "Section 5.1",
        "… though providing less accurate models.",
        ("mnist",),
        "The loss after T steps is higher with τ = 50 than with τ = 1, 2 and 10.",
        evidence.many_steps_are_less_accurate,
        needs_time=False,
    ),
    Claim(
        "ten-local-steps-are-best",
        "Section 5.1",
        "Here τ=10 is the optimal choice.",
        ("mnist",),
        _BEST,
        evidence.ten_steps_are_best,
    ),
    Claim(
        "fedpaq-beats-benchmarks",
        "Section 5.1",
        "The last plot compares the training time of FedPAQ with two other benchmarks FedAvg and QSGD.",
        ("mnist",),
        _FIRST,
        evidence.fedpaq_is_first,
    ),
    Claim(
        "quantization-saves-time-networks",
        "Section 5.2",
        "In the first plot, (τ,r)=(2,25) are fixed and we vary the quantization levels.",
        NETWORKS,
        _FASTER_LEVELS,
        evidence.quantizing_is_faster,
    ),
    Claim(
        "participation-matters-networks",
        "Section 5.2",
        "The second plot shows the effect of r while (s,τ)=(1,2).",
        NETWORKS,
        _EFFECT,
        evidence.clients_matter,
    ),
    Claim(
        "local-steps-trade-off",
        "Section 5.2",
        "The communication-computation tradeoff in terms of period length τ is demonstrated in the third plot …",
        NETWORKS,
        "τ = 1 takes longer than τ = 10 in mean time to the common levels, and the loss after T steps is "
        "higher with τ = 50 than with τ = 10.",
        evidence.steps_trade_off,
    ),
    Claim(
        "ten-local-steps-are-best-networks",
        "Section 5.2",
        "… where picking τ=10 turns out to attain the fastest convergence.",
        NETWORKS,
        _BEST,
        evidence.ten_steps_are_best,
    ),
    Claim(
        "fedpaq-beats-benchmarks-networks",
        "Section 5.2",
        "Lastly, we compare FedPAQ with other benchmarks in the forth plot.",
        ("cifar10-92k",),
        _FIRST,
        evidence.fedpaq_is_first,
    ),
    Claim(
        "practical-performance",
        "Supplement",
        "To further illustrate the practical performance of the proposed FedPAQ method, in this section we "
        "provide more numerical results using different and more complicated datasets and model parameters.",
        SUPPLEMENT,
        _FIRST,
        evidence.fedpaq_is_first,
    ),
)


def judge(
    figure: Figure, curves: Curves, claims: Sequence[Claim] = CLAIMS, accountings: Sequence[str] = ACCOUNTINGS
) -> list[dict[str, Any]]:
    """Return one entry per claim about the figure: its words, and verdict and numbers per accounting."""
    return [
        {
            "figure": figure.name,
            "claim": claim.name,
            "where": claim.where,
            "sentence": claim.sentence,
            "criterion": claim.criterion,
            "needs_time": claim.needs_time,
            "judged": {accounting: _judged(claim, Evidence(figure, curves, accounting)) for accounting in accountings},
        }
        for claim in claims
        if figure.name in claim.figures
    ]


def open_settings(figure: Figure, curves: Curves) -> set[PaperSetting]:
    """Return the settings whose curves need more seeds to settle a claim about the figure under some count."""
    return {
        setting
        for claim in CLAIMS
        if figure.name in claim.figures
        for accounting in ACCOUNTINGS
        for ratio in claim.judge(Evidence(figure, curves, accounting)).unsettled
        for setting in ratio.curves
    }


def _judged(claim: Claim, seen: Evidence) -> dict[str, Any]:
    finding = claim.judge(seen)
    is_tie_of_the_sixth = finding.verdict == TIED and seen.figure.beside is not None  # whose claims know no ties
    return {
        "verdict": UNDECIDED if is_tie_of_the_sixth else finding.verdict,
        "decisive": None if finding.decisive is None else _numbers(finding.decisive),
        "ratios": [_numbers(ratio) for ratio in finding.ratios],
    }


def _numbers(ratio: Ratio) -> dict[str, Any]:
    numbers = {name: float(f"{getattr(ratio, name):.4g}") for name in ("value", "low", "high")}
    return {"what": ratio.what, **numbers} | ({"at": ratio.at} if ratio.at else {})
