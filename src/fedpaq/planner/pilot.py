"""Pilot: the runs of one round setting, all step sizes and seeds as one batch, one round at a time.

A run of ``fedpaq.sweep`` goes to its end; a pilot stops after any round and continues later. Its loss
is watched on some samples only, the same for every pilot: evaluating all of them after every
round would cost more than the training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fedpaq.algorithm import play_round
from fedpaq.clients import choose_executor
from fedpaq.codec import raw_bytes
from fedpaq.downlink import Dense
from fedpaq.planner.task import Task
from fedpaq.server.aggregation import Mean
from fedpaq.server.uplink import choose_uplink
from fedpaq.theory.round_setting import RoundSetting

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Finish:
    """What each seed of a candidate needed to reach the target first; ``seconds`` is the mean."""

    rounds: tuple[int, ...]
    upload_bytes: tuple[float, ...]
    sending_seconds: tuple[float, ...]
    seconds: float
    slowest: float  # seconds of the slowest seed: large for a step size that is often unlucky


@dataclass(eq=False)
class Candidate:
    """One step size of a pilot: the mean over its seeds after every round."""

    setting: RoundSetting
    step_size: float
    losses: list[float] = field(default_factory=list)  # entry k after k rounds
    seconds: list[float] = field(default_factory=list)
    finish: Finish | None = None  # once every seed has reached the target
    alive: bool = True

    @property
    def loss(self) -> float:
        """The loss after the last round."""
        return self.losses[-1]

    def loss_at(self, seconds: float) -> float:
        """Return the loss after the last round that had ended by then."""
        return self.losses[int(np.searchsorted(self.seconds, seconds, side="right")) - 1]


class Pilot:
    """Runs of one round setting that can be paused; ``gradient_steps`` counts what they cost."""

    def __init__(self, task: Task, setting: RoundSetting, step_sizes: Sequence[float], seeds: Sequence[int]) -> None:
        self.setting, self._task, self._problem = setting, task, task.problem
        self._executor = choose_executor("auto", task.problem, setting.clients_per_round)
        self._uplink = choose_uplink(setting.quantizer, Mean(), task.problem)
        size = (len(step_sizes), len(seeds))
        self._configs = [[task.config(setting, step_size, seed) for seed in seeds] for step_size in step_sizes]
        flat = [config.seed for row in self._configs for config in row]
        self._broadcast = Dense().open(flat, task.problem.num_clients, task.problem.initial_params)
        self._params = np.tile(self._problem.initial_params, (*size, 1))  # (candidates, seeds, p)
        self._losses = np.full(size, task.initial_loss)
        self._bytes, self._sending = np.zeros(size), np.zeros(size)
        self._first = np.zeros(size, np.int64)  # the round in which a seed reached the target; 0: not yet
        self.candidates = [Candidate(setting, step_size, [task.initial_loss], [0.0]) for step_size in step_sizes]
        self.round, self.gradient_steps = 0, 0

    @property
    def alive(self) -> list[Candidate]:
        """The candidates still running."""
        return [candidate for candidate in self.candidates if candidate.alive]

    def next_seconds(self) -> float:
        """Return when the next round would end if it uploads as much as those before."""
        computing, running = self._task.computing_seconds(self.setting), self._running()
        if self.round:
            sending = float(self._sending[running].mean()) / self.round
        else:
            uploaded = self.setting.clients_per_round * self._task.upload_bytes(self.setting.quantizer)
            model_bytes = np.full(self.setting.clients_per_round, raw_bytes(self._problem.dimension))
            sending = self._task.sending_seconds(self.setting, uploaded, model_bytes)
        return (self.round + 1) * (computing + sending)

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
        self.gradient_steps += len(configs) * self.setting.clients_per_round * self.setting.local_steps
        self._params[running] = played.params
        self._bytes[running] += played.payload_bytes
        self._sending[running] += [
            self._task.sending_seconds(self.setting, *sent)
            for sent in zip(played.payload_bytes, played.download_bytes, strict=True)
        ]
        self._losses[running] = self._task.losses(played.params)
        self._first[running & (self._losses <= self._task.watched_target)] = self.round
        for row, candidate in enumerate(self.candidates):
            if candidate.alive:
                self._record(row, candidate)

    def _running(self) -> npt.NDArray[np.bool_]:
        """Return which runs (candidates, seeds) are alive and not at the target."""
        alive = np.array([candidate.alive for candidate in self.candidates])
        return np.asarray(alive[:, None] & (self._first == 0))

    def _record(self, row: int, candidate: Candidate) -> None:
        computing, sending = self._task.computing_seconds(self.setting), self._sending[row]
        candidate.losses.append(float(self._losses[row].mean()))
        candidate.seconds.append(self.round * computing + float(sending.max()))
        candidate.alive = bool(np.isfinite(self._losses[row]).all())
        if self._first[row].all():
            rounds = self._first[row]
            candidate.finish = Finish(
                rounds=tuple(rounds.tolist()),
                upload_bytes=tuple(self._bytes[row].tolist()),
                sending_seconds=tuple(sending.tolist()),
                seconds=float(rounds.mean() * computing + sending.mean()),
                slowest=float(rounds.max() * computing + sending.max()),
            )
