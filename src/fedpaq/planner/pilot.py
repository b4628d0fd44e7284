"""Pilot: the runs of one shape, all step sizes and seeds as one batch, a round at a time.

A run of ``fedpaq.sweep`` goes to its end; a pilot stops after any round and goes on later. Its loss
is watched on some samples only, the same for every pilot: looking at all of them after every
round would cost more than the training.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fedpaq.algorithm import play_round
from fedpaq.clients import choose_executor
from fedpaq.config import FedPAQConfig
from fedpaq.downlink import Dense
from fedpaq.planner.expected_time import expected_seconds
from fedpaq.planner.search_space import Shape
from fedpaq.planner.task import Task
from fedpaq.server import choose_uplink
from fedpaq.server.aggregation import Mean

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Finish:
    """What it took each seed of an arm to reach the target for the first time; ``seconds`` is the mean."""

    rounds: tuple[int, ...]
    upload_bytes: tuple[float, ...]
    seconds: float
    slowest: float  # seconds of the slowest seed: what a step size that is often unlucky has too much of


@dataclass(eq=False)
class Arm:
    """One step size of a pilot: the mean over its seeds after every round."""

    shape: Shape
    step_size: float
    losses: list[float] = field(default_factory=list)  # entry k after k rounds
    seconds: list[float] = field(default_factory=list)
    finish: Finish | None = None  # once every seed has been at the target
    alive: bool = True

    @property
    def loss(self) -> float:
        """The loss after the last round."""
        return self.losses[-1]

    def loss_at(self, seconds: float) -> float:
        """Return the loss after the last round that was over by then."""
        return self.losses[int(np.searchsorted(self.seconds, seconds, side="right")) - 1]


class Pilot:
    """Runs of one shape that can be paused; ``gradient_steps`` counts what they cost."""

    def __init__(self, task: Task, shape: Shape, step_sizes: Sequence[float], seeds: Sequence[int]) -> None:
        self.shape, self._task, self._problem = shape, task, task.problem
        self._executor = choose_executor("auto", task.problem, shape.clients_per_round)
        self._uplink = choose_uplink(shape.quantizer, Mean(), task.problem)
        size = (len(step_sizes), len(seeds))
        self._broadcast = Dense().open(math.prod(size), task.problem.num_clients, task.problem.dimension)
        self._configs = [[self._config(step_size, seed) for seed in seeds] for step_size in step_sizes]
        self._params = np.tile(self._problem.initial_params, (*size, 1))  # (arms, seeds, p)
        self._losses = np.full(size, task.initial_loss)
        self._bytes = np.zeros(size)
        self._first = np.zeros(size, np.int64)  # the round in which a seed reached the target; 0: not yet
        self.arms = [Arm(shape, step_size, [task.initial_loss], [0.0]) for step_size in step_sizes]
        self.round, self.gradient_steps = 0, 0

    @property
    def alive(self) -> list[Arm]:
        """The arms still running."""
        return [arm for arm in self.arms if arm.alive]

    def next_seconds(self) -> float:
        """Return when the next round would be over, if it uploads as much as those before."""
        running = self._running()
        played = self._bytes[running].mean() / self.round if self.round else 0.0
        per_round = played or self.shape.clients_per_round * self._task.upload_bytes(self.shape.levels)
        return expected_seconds(self._task, self.shape, self.round + 1, per_round * (self.round + 1))

    def play(self) -> None:
        """Play one round, lines 2 to 11 of Algorithm 1, of every run that is not at the target yet."""
        running = self._running()
        configs = [self._configs[row][column] for row, column in np.argwhere(running)]
        played = play_round(
            self._problem,
            configs,
            self.round,
            np.flatnonzero(running),
            self._params[running],  # (runs, p)
            self._executor,
            self._uplink,
            self._broadcast,
        )
        self.round += 1
        self.gradient_steps += len(configs) * self.shape.clients_per_round * self.shape.local_steps
        self._params[running] = played.params
        self._bytes[running] += played.payload_bytes
        self._losses[running] = self._task.losses(played.params)
        self._first[running & (self._losses <= self._task.watched_target)] = self.round
        for row, arm in enumerate(self.arms):
            if arm.alive:
                self._record(row, arm)

    def _running(self) -> npt.NDArray[np.bool_]:
        """Return which runs (arms, seeds) are alive and not at the target."""
        alive = np.array([arm.alive for arm in self.arms])
        return np.asarray(alive[:, None] & (self._first == 0))

    def _record(self, row: int, arm: Arm) -> None:
        arm.losses.append(float(self._losses[row].mean()))
        arm.seconds.append(expected_seconds(self._task, self.shape, self.round, float(self._bytes[row].max())))
        arm.alive = bool(np.isfinite(self._losses[row]).all())
        if self._first[row].all():
            rounds, uploaded = self._first[row], self._bytes[row]
            arm.finish = Finish(
                tuple(rounds.tolist()),
                tuple(uploaded.tolist()),
                expected_seconds(self._task, self.shape, float(rounds.mean()), float(uploaded.mean())),
                expected_seconds(self._task, self.shape, float(rounds.max()), float(uploaded.max())),
            )

    def _config(self, step_size: float, seed: int) -> FedPAQConfig:
        return FedPAQConfig(
            clients_per_round=self.shape.clients_per_round,
            local_steps=self.shape.local_steps,
            total_steps=self.shape.local_steps,  # a pilot has no end
            batch_size=self._task.batch_size,
            step_size=step_size,
            seed=seed,
        )
