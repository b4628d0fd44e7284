"""Validation: the fastest candidates of a race again, on fresh seeds and with the loss on all samples.

First many candidates on a few seeds, then the best of them on many: single runs differ by half.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.stats

from fedpaq.arrays import Float64
from fedpaq.clients import draw_participants
from fedpaq.config import round_to_4_digits
from fedpaq.planner.pilot import Candidate, Finish, Pilot
from fedpaq.planner.race import race
from fedpaq.planner.search_space import beside
from fedpaq.planner.task import Task
from fedpaq.theory.round_setting import RoundSetting

FIRST_SEEDS, LAST_SEEDS = range(100, 112), range(1000, 1048)  # the race uses none of them
FIRST_SETTINGS, LAST_SETTINGS = 12, 6
REFINED = 4  # settings of which other rates are tried as well
NEIGHBOURS = (0.5, 2**-0.5, 1.0, 2**0.5)  # times the race's step size, which is often large and lucky
CONFIDENCE = 0.9  # of the interval for a single run
TIE, SAME = 2.0, 0.01  # standard errors; share of the time, also where all runs take equally many rounds
MOST_SLOWER = 1.05  # times the fastest, up to which a tie is broken towards fewer bytes


@dataclass(frozen=True)
class Choice:
    """A configuration and its mean cost up to the first round at the target.

    90 % of single runs take ``low`` to ``high`` seconds. ``first_hits`` and ``runs`` are each seed's rounds and
    seconds, with the mean computation time of a round.
    """

    setting: RoundSetting
    step_size: float
    seconds: float
    low: float
    high: float
    upload_bytes: float
    download_bytes: float
    first_hits: tuple[int, ...]
    runs: tuple[float, ...]

    @property
    def rounds(self) -> float:
        """The mean of the first rounds at the target."""
        return float(np.mean(self.first_hits))

    @property
    def standard_error(self) -> float:
        """Of ``seconds``."""
        return float(np.std(self.runs, ddof=1) / math.sqrt(len(self.runs)))

    def is_tied_with(self, other: Choice) -> bool:
        """Return whether the mean times differ by two standard errors, taken seed by seed, or 1 %, or less."""
        differences = np.subtract(self.runs, other.runs)
        error = differences.std(ddof=1) / math.sqrt(len(differences))
        return bool(abs(differences.mean()) <= max(TIE * error, SAME * other.seconds))

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        shown = {name: value for name, value in vars(self).items() if name not in ("first_hits", "runs")}
        means = {"rounds": self.rounds, "standard_error": self.standard_error}
        return {**shown, **means, "setting": self.setting.to_dict()}


def settle(choices: Sequence[Choice]) -> list[Choice]:
    """Return the choices with the pick first, the others as they were, fastest first.

    The pick is the fastest, or one tied with it that is at most 5 % slower and sends fewer bytes, to two digits;
    if those are equal, fewer clients decide.
    """
    fastest, *others = choices
    tied = [other for other in others if other.is_tied_with(fastest) and other.seconds <= MOST_SLOWER * fastest.seconds]

    def frugal(choice: Choice) -> tuple[float, int, float]:
        sent = float(f"{choice.upload_bytes + choice.download_bytes:.1e}")
        return sent, choice.setting.clients_per_round, choice.seconds

    pick = min([fastest, *tied], key=frugal)
    return [pick, *(choice for choice in choices if choice is not pick)]


def validate(
    task: Task, finished: Sequence[Candidate], last_factors: Sequence[float] = (1.0,), *, refine: bool = False
) -> tuple[list[Choice], int]:
    """Return the best of the candidates that finished a race, fastest first, and the gradient steps spent.

    The last runs try ``last_factors`` times the step sizes that won the first. With ``refine`` the first runs also
    try the rates beside those of the best settings.
    """
    whole = replace(task, watched_samples=None)
    fastest: dict[RoundSetting, float] = {}  # step size, in the order of the race
    for candidate in finished:
        fastest.setdefault(candidate.setting, candidate.step_size)
    entered = dict(list(fastest.items())[:FIRST_SETTINGS])
    for setting in list(entered)[:REFINED] if refine else ():
        for other in beside(setting, task.problem.dimension):
            entered.setdefault(other, entered[setting])
    entries = {
        setting: [round_to_4_digits(step_size * factor) for factor in NEIGHBOURS]
        for setting, step_size in entered.items()
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
    finish = candidate.finish
    assert finish is not None  # a race returns only those
    computing = task.computing_seconds(candidate.setting)
    logs = np.log(single_runs(task, candidate, finish, seeds))  # times are skewed
    reach = scipy.stats.t.ppf(0.5 + CONFIDENCE / 2, len(logs) - 1) * math.sqrt(1 + 1 / len(logs))
    spread = float(reach * logs.std(ddof=1))
    return Choice(
        setting=candidate.setting,
        step_size=candidate.step_size,
        seconds=finish.seconds,
        low=math.exp(float(logs.mean()) - spread),
        high=math.exp(float(logs.mean()) + spread),
        upload_bytes=float(np.mean(finish.upload_bytes)),
        download_bytes=float(np.mean(finish.download_bytes)),
        first_hits=finish.rounds,
        runs=tuple(computing * k + sent for k, sent in zip(finish.rounds, finish.sending_seconds, strict=True)),
    )


def single_runs(task: Task, candidate: Candidate, finish: Finish, seeds: Sequence[int]) -> Float64:
    """Return the seconds of each seed with drawn computation times instead of their mean."""
    setting, price = candidate.setting, task.cost_model
    configs = [task.config(setting, candidate.step_size, seed) for seed in seeds]
    computing = np.zeros(len(seeds))
    for k in range(max(finish.rounds)):
        for row, participants in enumerate(draw_participants(task.problem, configs, k)):
            if k < finish.rounds[row]:
                gradients = setting.local_steps * task.samples_per_step(participants)
                computing[row] += price.computation_seconds(seeds[row], k, participants, gradients)
    return np.asarray(computing + finish.sending_seconds)
