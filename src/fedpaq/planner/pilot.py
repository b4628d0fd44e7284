"""Pilot: the runs of one shape, all step sizes and seeds as one batch, a round at a time.

A run of ``fedpaq.sweep`` goes to its end; a pilot stops after any round and goes on later. Its loss
is watched on some samples only, the same for every pilot: looking at all of them after every
round would cost more than the training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fedpaq.aggregation import Mean
from fedpaq.clients import choose_executor, draw_participants, local_work
from fedpaq.config import FedPAQConfig
from fedpaq.planner.expected_time import expected_seconds
from fedpaq.planner.search_space import Shape
from fedpaq.planner.task import Task
from fedpaq.uplink import choose_uplink

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Finish:
    """What it takes an arm to reach the target for the first time, on average over its seeds."""

    rounds: float
    seconds: float
    upload_bytes: float


@dataclass(eq=False)
class Arm:
    """One step size of a pilot: the mean over its seeds after every round."""

    shape: Shape
    step_size: float
    losses: list[float] = field(default_factory=list)  # entry k after k rounds
    seconds: list[float] = field(default_factory=list)
    upload_bytes: list[float] = field(default_factory=list)
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
        self.arms = [Arm(shape, step_size) for step_size in step_sizes]
        self._configs = [[self._config(arm.step_size, seed) for seed in seeds] for arm in self.arms]
        self._params = np.tile(
            self._problem.initial_params, (len(self.arms), len(seeds), 1)
        )  # (arms, seeds, p)
        self._bytes = np.zeros((len(self.arms), len(seeds)))
        self._first = np.full((len(self.arms), len(seeds), 2), np.nan)  # round and bytes at the target
        self.round, self.gradient_steps = 0, 0
        first = task.watched.evaluate(self._problem.initial_params).loss
        for arm in self.arms:
            arm.losses.append(first)
            arm.seconds.append(0.0)
            arm.upload_bytes.append(0.0)

    @property
    def alive(self) -> list[Arm]:
        """The arms still running."""
        return [arm for arm in self.arms if arm.alive]

    def next_seconds(self) -> float:
        """Return when the next round would be over; a first round is taken to upload nothing."""
        uploaded = max(arm.upload_bytes[-1] for arm in self.alive)
        rounds = self.round + 1
        return expected_seconds(self._task, self.shape, rounds, uploaded / max(1, self.round) * rounds)

    def play(self) -> None:
        """Play one round of every arm that is alive: lines 2 to 11 of Algorithm 1, as ``sweep`` does."""
        rows = [row for row, arm in enumerate(self.arms) if arm.alive]
        configs = [config for row in rows for config in self._configs[row]]
        params = self._params[rows].reshape(len(configs), -1)  # (runs, p)
        participants = draw_participants(self._problem, configs, self.round)
        inbox = self._uplink.open(len(configs), self._problem.dimension)
        for work in local_work(
            self._problem, configs, self.round, params, participants, share=self._uplink.share
        ):
            inbox.send(self._executor.local_updates(self._problem, work), work)
        mean, payload_bytes = inbox.close()
        params = (params + mean).astype(np.float32)

        self._params[rows] = params.reshape(len(rows), -1, params.shape[1])
        self._bytes[rows] += payload_bytes.reshape(len(rows), -1)
        self.round += 1
        self.gradient_steps += len(configs) * self.shape.clients_per_round * self.shape.local_steps
        self._record(rows, params)

    def _record(self, rows: Sequence[int], params: npt.NDArray[np.float32]) -> None:
        finite = np.isfinite(params).all(axis=1)
        losses = np.full(len(params), np.inf)
        losses[finite] = [found.loss for found in self._task.watched.evaluate_batch(params[finite])]
        for row, own in zip(rows, losses.reshape(len(rows), -1), strict=True):
            arm, uploaded = self.arms[row], float(self._bytes[row].mean())
            arm.losses.append(float(own.mean()))
            arm.seconds.append(expected_seconds(self._task, self.shape, self.round, uploaded))
            arm.upload_bytes.append(uploaded)
            arm.alive = bool(np.isfinite(own).all())
            new = (own <= self._task.target_loss) & np.isnan(self._first[row, :, 0])
            self._first[row, new, 0] = self.round
            self._first[row, new, 1] = self._bytes[row, new]
            if not np.isnan(self._first[row]).any():
                arm.finish = self._finish(*self._first[row].mean(axis=0).tolist())

    def _finish(self, rounds: float, upload_bytes: float) -> Finish:
        return Finish(rounds, expected_seconds(self._task, self.shape, rounds, upload_bytes), upload_bytes)

    def _config(self, step_size: float, seed: int) -> FedPAQConfig:
        return FedPAQConfig(
            clients_per_round=self.shape.clients_per_round,
            local_steps=self.shape.local_steps,
            total_steps=self.shape.local_steps,  # a pilot has no end
            batch_size=self._task.batch_size,
            step_size=step_size,
            seed=seed,
        )
