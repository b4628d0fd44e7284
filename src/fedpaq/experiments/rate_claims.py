"""Rate claims: what ``Rotated`` should do in the sixth figure, each with the criterion that judges it.

Claims and criteria were fixed before any curve of ``Rotated`` was run. They are about losses after T steps, on
paired seeds; bytes need no judging, since no payload of ``Rotated`` exceeds its rate.
"""

from typing import Any

from fedpaq.experiments import judging
from fedpaq.experiments.claims import Claim, judge
from fedpaq.experiments.curve import Curves
from fedpaq.experiments.evidence import Evidence
from fedpaq.experiments.figures import Figure
from fedpaq.experiments.judging import Finding
from fedpaq.experiments.rates import LABELS, MATCHED, NAME, PLOTS

ACCOUNTINGS = ("payload",)  # Rotated has no fixed width
WITHIN = 1.01
WHERE = "not in the paper"


def below_its_rival(evidence: Evidence) -> Finding:
    """The loss after T steps, each s against Rotated with the bytes of that s."""
    found = [
        ratio
        for levels, label in zip(MATCHED, LABELS, strict=False)
        for ratio in evidence.losses(NAME, label, [levels])
    ]
    return judging.all_above(found)


def few_bytes_match_ten_levels(evidence: Evidence) -> Finding:
    """The loss after T steps, s = 10 against Rotated with the bytes of s = 1."""
    return judging.all_above(evidence.losses(NAME, LABELS[0], ["s = 10"]))


def few_bytes_near_five_levels(evidence: Evidence) -> Finding:
    """The same with s = 5, a hundredth allowed."""
    return judging.all_above(evidence.losses(NAME, LABELS[0], ["s = 5"]), 1 / WITHIN)


def some_bytes_near_float32(evidence: Evidence) -> Finding:
    """The loss after T steps, no quantization against Rotated with the bytes of s = 5, a hundredth allowed."""
    return judging.all_above(evidence.losses(NAME, LABELS[1], ["no quantization"]), 1 / WITHIN)


RATE_CLAIMS = (
    Claim(
        "lower-loss-at-equal-bytes",
        WHERE,
        "With the bytes of s, Rotated ends lower than s.",
        tuple(PLOTS),
        "For s = 1, 5 and 10 the loss after T steps is lower with Rotated at the bytes of s than with s.",
        below_its_rival,
        needs_time=False,
    ),
    Claim(
        "quality-of-ten-levels-for-the-bytes-of-one",
        WHERE,
        "With the bytes of s = 1, Rotated ends as low as s = 10.",
        ("rates-cifar10-92k", "rates-cifar100"),
        "The loss after T steps is lower with Rotated at the bytes of s = 1 than with s = 10.",
        few_bytes_match_ten_levels,
        needs_time=False,
    ),
    Claim(
        "quality-of-five-levels-for-the-bytes-of-one",
        WHERE,
        "With the bytes of s = 1, Rotated ends as low as s = 5.",
        ("rates-fashion",),
        "The loss after T steps with Rotated at the bytes of s = 1 exceeds that of s = 5 by less than 1 %.",
        few_bytes_near_five_levels,
        needs_time=False,
    ),
    Claim(
        "quality-of-float32-for-the-bytes-of-five-levels",
        WHERE,
        "With the bytes of s = 5, Rotated ends as low as without quantization.",
        tuple(PLOTS),
        "The loss after T steps with Rotated at the bytes of s = 5 exceeds that without quantization by less than 1 %.",
        some_bytes_near_float32,
        needs_time=False,
    ),
)


def judge_rates(plot: Figure, curves: Curves) -> list[dict[str, Any]]:
    """Return one entry per claim about the plot."""
    return judge(plot, curves, RATE_CLAIMS, ACCOUNTINGS)
