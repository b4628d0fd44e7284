"""Tuning: "finely tune the step size", as one rule for all curves of a figure.

A constant step size per curve. A coarse grid, a factor 4 apart, on two tuning seeds is widened
while its best point lies at an end; then that point and a fine grid around it, a factor
sqrt 2 apart, run on all tuning seeds, which the curve itself never uses. Each grid times its seeds is
one batch. The step size with the lowest objective is chosen, averaged over the tuning seeds; of equal
ones the smaller. The loss is that of every tenth sample. A run that diverged counts as infinitely bad.

The objective of the paper's figures ("held") is the area under the loss that a run holds: after round k
not f(x_k) but the highest of f(x_k), ..., f(x_K), averaged over k = 1..K. A level counts from the round
on from which the run stays there, so a dip that is lost again earns nothing, and a peak costs all
rounds before it. A run that ever stands above its initial loss counts as diverged.

It was written down before a curve was run with it, after curves of an earlier rule had shown what was
wrong with that one ("area", which the sixth figure was fixed with and keeps): the plain area under
f(x_k) chose step sizes with which the loss of tau = 1 and of QSGD on MNIST doubled before it fell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np

from fedpaq.algorithm import sweep
from fedpaq.config import FedPAQConfig, round_to_4_digits
from fedpaq.experiments.curve import CurveSettings
from fedpaq.experiments.following import following
from fedpaq.problems import Problem
from fedpaq.quantizers import parse
from fedpaq.run.history import History

WIDEST = 4.0**6  # a grid is widened by no more than this factor

Losses = dict[float, list[float | None]]
Advance = Callable[[int], None]  # called with the number of local steps done


def tune(problem: Problem, settings: CurveSettings, advance: Advance) -> tuple[float, Losses]:
    """Return the best step size, and the mean losses of every one tried (None: diverged)."""
    first, rest = settings.tuning_seeds[: settings.coarse_seeds], settings.tuning_seeds[settings.coarse_seeds :]
    sampled = following(problem.evaluated_on(np.arange(0, len(problem.inputs), settings.tuning_stride)))

    def try_out(step_sizes: Sequence[float], seeds: Sequence[int]) -> Losses:
        found = [objective(history, settings.rule) for history in run(sampled, settings, step_sizes, seeds, advance)]
        return {eta: found[i * len(seeds) : (i + 1) * len(seeds)] for i, eta in enumerate(step_sizes)}

    coarse = try_out([round_to_4_digits(eta) for eta in settings.coarse], first)
    while (wider := _wider(coarse, settings.coarse)) is not None:
        coarse |= try_out([wider], first)
    centre = best(coarse)
    fine = try_out([round_to_4_digits(centre * factor) for factor in settings.fine], settings.tuning_seeds)
    fine[centre] = coarse[centre] + try_out([centre], rest)[centre]
    return best(fine), coarse | fine


def best(losses: Losses) -> float:
    """Return the step size with the lowest mean loss."""
    return min(sorted(losses), key=lambda eta: mean_loss(losses[eta]))


def mean_loss(losses: Sequence[float | None]) -> float:
    """Return the mean, infinite if a run diverged."""
    finite = [loss for loss in losses if loss is not None]
    return sum(finite) / len(finite) if len(finite) == len(losses) else math.inf


def run(
    problem: Problem, settings: CurveSettings, step_sizes: Sequence[float], seeds: Sequence[int], advance: Advance
) -> list[History]:
    """Run every step size on every seed as one batch, step size by step size."""
    setting = settings.setting
    configs = [
        FedPAQConfig(
            clients_per_round=setting.clients_per_round,
            local_steps=setting.local_steps,
            total_steps=settings.total_steps,
            batch_size=settings.batch_size,
            step_size=eta,
            seed=seed,
        )
        for eta in step_sizes
        for seed in seeds
    ]
    if not configs:
        return []
    return sweep(
        problem,
        configs,
        quantizer=parse(setting.quantizer),
        callback=lambda _, record, __: advance(setting.local_steps if record.round else 0),
        device=settings.device,
    )


def _wider(losses: Losses, grid: Sequence[float]) -> float | None:
    """Return the next step size outwards if the best one lies at an end of the grid."""
    centre = best(losses)
    if math.isinf(mean_loss(losses[centre])):
        centre = min(losses)  # everything diverged: only smaller ones can help
    if centre == min(losses) and centre > grid[0] / WIDEST:
        return round_to_4_digits(centre / 4)
    if centre == max(losses) and centre < grid[-1] * WIDEST:
        return round_to_4_digits(centre * 4)
    return None


def objective(history: History, rule: str) -> float | None:
    """Return the mean over rounds 1 to K of the loss, or of the loss held, or None if the run counts as diverged."""
    if history.diverged is not None:
        return None
    start, *losses = [record.loss for record in history.records if record.loss is not None]
    if rule == "held":
        if max(losses) > start:
            return None
        losses = list(accumulate(reversed(losses), max))
    return float(f"{sum(losses) / len(losses):.6g}")
