"""Final: the fastest candidates of a race on fresh seeds and all samples, until each run is there.

A heat of many on a few seeds, then the best of it on many seeds: single runs differ by half.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.stats

from fedpaq.algorithm import sweep
from fedpaq.config import FedPAQConfig
from fedpaq.history import History
from fedpaq.planner.expected_time import expected_seconds
from fedpaq.planner.pilot import Arm
from fedpaq.planner.search_space import Shape
from fedpaq.planner.task import Task

HEAT_SEEDS, LAST_SEEDS = range(100, 108), range(1000, 1032)  # none of the race's
HEAT_SHAPES, LAST_SHAPES = 8, 4
NEIGHBOURS = (2**-0.5, 1.0, 2**0.5)  # times the race's step size
CONFIDENCE = 0.9  # of the interval for a single run


@dataclass(frozen=True)
class Choice:
    """A configuration and what it takes to the target, on average; ``low`` to ``high`` holds 90 % of runs."""

    shape: Shape
    step_size: float
    rounds: float
    seconds: float
    low: float
    high: float
    upload_bytes: float


@dataclass(frozen=True)
class Finalist:
    """A shape, the step sizes to try and how many rounds the race needed."""

    shape: Shape
    step_sizes: Sequence[float]
    rounds: int


def finalists(finished: Iterable[Arm]) -> list[Finalist]:
    """Return the fastest shapes with the step sizes around their best."""
    chosen: dict[Shape, Finalist] = {}
    for arm in finished:
        if arm.shape not in chosen and len(chosen) < HEAT_SHAPES and arm.finish is not None:
            etas = [float(f"{arm.step_size * factor:.4g}") for factor in NEIGHBOURS]
            chosen[arm.shape] = Finalist(arm.shape, etas, math.ceil(arm.finish.rounds))
    return list(chosen.values())


def run_final(task: Task, entrants: Sequence[Finalist]) -> tuple[list[Choice], int]:
    """Return the best entrants, each with its best step size, fastest first, and the gradient steps taken."""
    heat, spent = run_heat(task, entrants, HEAT_SEEDS)
    last = [Finalist(one.shape, [one.step_size], math.ceil(one.rounds)) for one in heat[:LAST_SHAPES]]
    choices, more = run_heat(task, last, LAST_SEEDS)
    return choices, spent + more


def run_heat(task: Task, entrants: Sequence[Finalist], seeds: Sequence[int]) -> tuple[list[Choice], int]:
    """Return every entrant with its best step size, fastest first; those that do not get there drop out."""
    choices, spent = [], 0
    for entrant in entrants:
        histories, steps = _run_until_there(task, entrant, seeds)
        spent += steps
        per_step_size = [histories[i : i + len(seeds)] for i in range(0, len(histories), len(seeds))]
        found = [
            choice(task, entrant.shape, step_size, runs)
            for step_size, runs in zip(entrant.step_sizes, per_step_size, strict=True)
            if all(history.seconds_to(task.target_loss) is not None for history in runs)
        ]
        choices += sorted(found, key=lambda one: one.seconds)[:1]
    return sorted(choices, key=lambda one: one.seconds), spent


def choice(task: Task, shape: Shape, step_size: float, histories: Sequence[History]) -> Choice:
    """Return the means over runs that all reached the target, and the interval for a single one."""
    records = [
        next(record for record in run.records if record.loss is not None and record.loss <= task.target_loss)
        for run in histories
    ]
    rounds = float(np.mean([record.round for record in records]))
    upload_bytes = float(np.mean([record.payload_bytes for record in records]))
    logs = np.log([record.seconds for record in records])  # times are skewed
    reach = scipy.stats.t.ppf(0.5 + CONFIDENCE / 2, len(logs) - 1) * math.sqrt(1 + 1 / len(logs))
    spread = float(reach * logs.std(ddof=1))
    return Choice(
        shape=shape,
        step_size=step_size,
        rounds=rounds,
        seconds=expected_seconds(task, shape, rounds, upload_bytes),
        low=math.exp(float(logs.mean()) - spread),
        high=math.exp(float(logs.mean()) + spread),
        upload_bytes=upload_bytes,
    )


def _run_until_there(task: Task, entrant: Finalist, seeds: Sequence[int]) -> tuple[list[History], int]:
    """Run with twice the rounds of the race, and twice as many again until one step size is there."""
    shape, spent, rounds = entrant.shape, 0, 2 * entrant.rounds
    while True:
        total_steps = rounds * shape.local_steps
        configs = [
            FedPAQConfig(
                clients_per_round=shape.clients_per_round,
                local_steps=shape.local_steps,
                total_steps=total_steps,
                batch_size=task.batch_size,
                step_size=step_size,
                seed=seed,
            )
            for step_size in entrant.step_sizes
            for seed in seeds
        ]
        histories = sweep(task.problem, configs, quantizer=shape.quantizer, cost_model=task.cost_model)
        spent += len(configs) * total_steps * shape.clients_per_round
        reached = [history.seconds_to(task.target_loss) is not None for history in histories]
        there = any(all(reached[i : i + len(seeds)]) for i in range(0, len(reached), len(seeds)))
        if there or total_steps > task.max_steps:
            return histories, spent
        rounds *= 2
