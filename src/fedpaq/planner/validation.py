"""Validation: the fastest candidates of a race again, on fresh seeds and with the loss on all samples.

First many candidates on a few seeds, then the best of them on many: single runs differ by half.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.stats

from fedpaq.clients import draw_participants
from fedpaq.config import round_to_4_digits
from fedpaq.planner.pilot import Candidate, Finish, Pilot
from fedpaq.planner.race import race
from fedpaq.planner.task import Task
from fedpaq.theory.round_setting import RoundSetting

FIRST_SEEDS, LAST_SEEDS = range(100, 112), range(1000, 1032)  # the race uses none of them
FIRST_SETTINGS, LAST_SETTINGS = 12, 6
NEIGHBOURS = (0.5, 2**-0.5, 1.0, 2**0.5)  # times the race's step size, which is often large and lucky
CONFIDENCE = 0.9  # of the interval for a single run


@dataclass(frozen=True)
class Choice:
    """A configuration and its mean cost to the target; 90 % of runs take ``low`` to ``high`` seconds."""

    setting: RoundSetting
    step_size: float
    rounds: float
    seconds: float
    low: float
    high: float
    upload_bytes: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {**vars(self), "setting": self.setting.to_dict()}


def validate(
    task: Task, finished: Sequence[Candidate], last_factors: Sequence[float] = (1.0,)
) -> tuple[list[Choice], int]:
    """Return the best of the candidates that finished a race, fastest first, and the gradient steps spent.

    The last runs try ``last_factors`` times the step sizes that won the first.
    """
    whole = replace(task, watched_samples=None)
    fastest: dict[RoundSetting, float] = {}  # step size, in the order of the race
    for candidate in finished:
        fastest.setdefault(candidate.setting, candidate.step_size)
    entries = {
        setting: [round_to_4_digits(step_size * factor) for factor in NEIGHBOURS]
        for setting, step_size in list(fastest.items())[:FIRST_SETTINGS]
    }
    first, spent = rerun(whole, entries, FIRST_SEEDS)
    best = {
        choice.setting: [round_to_4_digits(choice.step_size * factor) for factor in last_factors]
        for choice in first[:LAST_SETTINGS]
    }
    last, more = rerun(whole, best, LAST_SEEDS)
    return last or first, spent + more


def rerun(task: Task, entries: dict[RoundSetting, list[float]], seeds: Sequence[int]) -> tuple[list[Choice], int]:
    """Return the best step size of every setting that reached the target in time, fastest first."""
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
    """Return the means of a candidate that finished, and the interval for a single run."""
    assert candidate.finish is not None  # a race returns only those
    logs = np.log(single_runs(task, candidate, candidate.finish, seeds))  # times are skewed
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


def single_runs(task: Task, candidate: Candidate, finish: Finish, seeds: Sequence[int]) -> npt.NDArray[np.float64]:
    """Return the seconds of each seed with drawn computation times instead of their mean."""
    setting, price = candidate.setting, task.cost_model
    gradients = np.full(setting.clients_per_round, setting.local_steps * task.samples_per_step)
    configs = [task.config(setting, candidate.step_size, seed) for seed in seeds]
    computing = np.zeros(len(seeds))
    for k in range(max(finish.rounds)):
        for row, participants in enumerate(draw_participants(task.problem, configs, k)):
            if k < finish.rounds[row]:
                computing[row] += price.computation_seconds(seeds[row], k, participants, gradients)
    return np.asarray(computing + finish.sending_seconds)
