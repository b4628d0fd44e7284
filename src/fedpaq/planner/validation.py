"""Final: the fastest candidates of a race again, on fresh seeds and with the loss on all samples.

A heat of many candidates on a few seeds, then the best of it on many: single runs differ by half.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import scipy.stats

from fedpaq.planner.pilot import Candidate, Finish, Pilot
from fedpaq.planner.race import race
from fedpaq.planner.search_space import RoundSetting
from fedpaq.planner.task import Task

HEAT_SEEDS, LAST_SEEDS = range(100, 112), range(1000, 1032)  # none of the race's
HEAT_SHAPES, LAST_SHAPES = 12, 6
NEIGHBOURS = (0.5, 2**-0.5, 1.0, 2**0.5)  # times the race's step size, which is often a lucky large one
CONFIDENCE = 0.9  # of the interval for a single run


@dataclass(frozen=True)
class Choice:
    """A configuration and what it takes to the target, on average; ``low`` to ``high`` holds 90 % of runs."""

    setting: RoundSetting
    step_size: float
    rounds: float
    seconds: float
    low: float
    high: float
    upload_bytes: float


def validate(
    task: Task, finished: Sequence[Candidate], last_factors: Sequence[float] = (1.0,)
) -> tuple[list[Choice], int]:
    """Return the best of the candidates that finished a race, fastest first, and the gradient steps it took.

    The last heat tries these multiples of the step sizes that won the first.
    """
    whole = replace(task, watched_samples=None)
    first = {
        candidate.setting: candidate.step_size for candidate in reversed(finished)
    }  # the fastest step size of a setting
    settings = list(dict.fromkeys(candidate.setting for candidate in finished))[:HEAT_SHAPES]
    entries = {setting: [tidy(first[setting] * factor) for factor in NEIGHBOURS] for setting in settings}
    heat, spent = rerun(whole, entries, HEAT_SEEDS)
    best = {
        choice.setting: [tidy(choice.step_size * factor) for factor in last_factors]
        for choice in heat[:LAST_SHAPES]
    }
    last, more = rerun(whole, best, LAST_SEEDS)
    return last or heat, spent + more


def rerun(
    task: Task, entries: dict[RoundSetting, list[float]], seeds: Sequence[int]
) -> tuple[list[Choice], int]:
    """Return the best step size of every setting that got to the target in time, fastest first."""
    if not entries:
        return [], 0
    pilots = [Pilot(task, setting, step_sizes, seeds) for setting, step_sizes in entries.items()]
    found: dict[RoundSetting, Choice] = {}
    for candidate in race(pilots, max_steps=task.max_steps):
        choice = choice_of(task, candidate, seeds)
        if candidate.setting not in found or choice.seconds < found[candidate.setting].seconds:
            found[candidate.setting] = choice
    spent = sum(pilot.gradient_steps for pilot in pilots)
    return sorted(found.values(), key=lambda choice: choice.seconds), spent


def choice_of(task: Task, candidate: Candidate, seeds: Sequence[int]) -> Choice:
    """Return the means of an candidate that finished, and the interval for a single run."""
    assert candidate.finish is not None  # a race returns only those
    logs = np.log(single_runs(task, candidate.setting, candidate.finish, seeds))  # times are skewed
    reach = scipy.stats.t.ppf(0.5 + CONFIDENCE / 2, len(logs) - 1) * math.sqrt(1 + 1 / len(logs))
    spread = float(reach * logs.std(ddof=1))
    return Choice(
        setting=candidate.setting,
        step_size=candidate.step_size,
        rounds=float(np.mean(candidate.finish.rounds)),
        seconds=candidate.finish.seconds,
        low=math.exp(float(logs.mean()) - spread),
        high=math.exp(float(logs.mean()) + spread),
        upload_bytes=float(np.mean(candidate.finish.upload_bytes)),
    )


def single_runs(
    task: Task, setting: RoundSetting, finish: Finish, seeds: Sequence[int]
) -> npt.NDArray[np.float64]:
    """Return the seconds of each seed with drawn, not mean, computation times."""
    clients = np.arange(setting.clients_per_round)
    batch = task.batch_size or float(task.problem.partition.sizes().mean())
    gradients = np.full(len(clients), setting.local_steps * batch)
    seconds = [
        sum(task.cost_model.computation_seconds(seed, k, clients, gradients) for k in range(rounds))
        + task.cost_model.communication_seconds(8 * uploaded, task.problem.dimension)
        for seed, rounds, uploaded in zip(seeds, finish.rounds, finish.upload_bytes, strict=True)
    ]
    return np.array(seconds)


def tidy(step_size: float) -> float:
    """Return a step size with four digits, so that it can be typed to repeat a run."""
    return float(f"{step_size:.4g}")
