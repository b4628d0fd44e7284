"""Tuning: "finely tune the step size", as one rule for all curves of a figure.

A constant step size per curve. A coarse grid, a factor 4 apart, on two tuning seeds is widened
while its best point lies at an end; then that point and a fine grid around it, a factor
sqrt 2 apart, run on all tuning seeds, which the curve itself never uses. Each grid times its seeds is
one batch. The step size with the lowest area under the training loss is chosen: the mean over all
rounds from the first to the last, averaged over the tuning seeds. A step size should be fast, and
one lucky last round should not decide. The loss is that of every tenth sample. A run that diverged
counts as infinitely bad; of equal step sizes the smaller wins.

That is the rule "area", which the sixth figure was fixed with and keeps. On MNIST it chose step sizes with
which the loss of tau = 1 and of QSGD doubles before it falls. So the paper's figures have the rule "steady":
a step size is out if the mean loss of the tuning seeds ever rises by more than 10 % above the lowest it
has reached; and while the best point lies at an end of the fine grid, that goes on outwards.
docs/reproduce.md tells what had been seen when it was fixed.
"""

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from fedpaq.algorithm import sweep
from fedpaq.arrays import Float64
from fedpaq.config import FedPAQConfig, round_to_4_digits
from fedpaq.experiments.curve import CurveSettings
from fedpaq.experiments.following import following
from fedpaq.problems import Problem
from fedpaq.quantizers import parse
from fedpaq.run.history import History

WIDEST = 4.0**6  # a grid is widened by no more than this factor
MOST_RISE = 1.1  # of a steady mean loss, over the lowest it has reached

Losses = dict[float, list[float | None]]
Path = Float64  # the losses of a run before the first round and after every round
Advance = Callable[[int], None]  # called with the number of local steps done


def tune(problem: Problem, settings: CurveSettings, advance: Advance) -> tuple[float, Losses]:
    """Return the best step size, and the mean losses of every one tried (None: diverged, or not steady)."""
    seeds, few = settings.tuning_seeds, settings.tuning_seeds[: settings.coarse_seeds]
    sampled = following(problem.evaluated_on(np.arange(0, len(problem.inputs), settings.tuning_stride)))
    paths: dict[float, list[Path | None]] = {}

    def try_out(step_sizes: Sequence[float], seeds: Sequence[int]) -> None:
        found = [path_of(history) for history in run(sampled, settings, step_sizes, seeds, advance)]
        for i, eta in enumerate(step_sizes):
            paths.setdefault(eta, []).extend(found[i * len(seeds) : (i + 1) * len(seeds)])

    def scored(step_sizes: Iterable[float]) -> Losses:
        return {eta: scores(paths[eta], settings.rule) for eta in step_sizes}

    try_out([round_to_4_digits(eta) for eta in settings.coarse], few)
    while (wider := _outwards(scored(paths), 4, settings.coarse)) is not None:
        try_out([wider], few)
    centre = best(scored(paths))
    fine = [centre, *(round_to_4_digits(centre * factor) for factor in settings.fine)]
    try_out(fine[1:], seeds)
    try_out([centre], seeds[len(few) :])
    while settings.rule == "steady" and (beyond := _outwards(scored(fine), 2**0.5, settings.coarse)) is not None:
        try_out([beyond], seeds[len(paths.get(beyond, [])) :])
        fine.append(beyond)
    return best(scored(fine)), scored(paths)


def _outwards(losses: Losses, factor: float, coarse: Sequence[float]) -> float | None:
    """Return the next step size, a ``factor`` away, if the best one lies at an end; if none will do, a smaller one."""
    chosen = best(losses)
    if chosen == min(losses):
        return round_to_4_digits(chosen / factor) if chosen > coarse[0] / WIDEST else None
    if chosen == max(losses) and chosen < coarse[-1] * WIDEST:
        return round_to_4_digits(chosen * factor)
    return None


def path_of(history: History) -> Path | None:
    """Return the losses of a run, or None if it diverged."""
    if history.diverged is not None:
        return None
    return np.array([record.loss for record in history.records], float)


def scores(paths: Sequence[Path | None], rule: str) -> list[float | None]:
    """Return each run's mean loss over rounds 1 to K; None: it diverged, or the mean of all is not steady."""
    finite = [path for path in paths if path is not None]
    if rule == "steady" and finite:
        mean = np.mean(finite, axis=0)
        if (mean > MOST_RISE * np.minimum.accumulate(mean)).any():
            return [None] * len(paths)
    return [None if path is None else float(f"{path[1:].mean():.6g}") for path in paths]


def best(losses: Losses) -> float:
    """Return the step size with the lowest mean loss, the smallest where all are infinite."""
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
