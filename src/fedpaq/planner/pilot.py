"""Pilot: the runs of one round setting, all step sizes and seeds as one batch, one round at a time.

A run of ``fedpaq.sweep`` goes to its end; a pilot stops after any round and continues later. Its runs end at the
target, unless it ``goes_on``. Their loss is watched on some samples only, the same for every pilot: evaluating all of
them after every round would cost more than the training.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from fedpaq.algorithm import play_round
from fedpaq.arrays import Bools, Float32, Float64
from fedpaq.clients import choose_executor
from fedpaq.downlink import Broadcast
from fedpaq.hardware.devices import to_array
from fedpaq.planner.task import Task
from fedpaq.server.aggregation import Mean
from fedpaq.server.uplink import choose_uplink
from fedpaq.theory.round_setting import RoundSetting


@dataclass(frozen=True)
class Finish:
    """What each seed of a candidate needed to reach the target first; ``seconds`` is the mean."""

    rounds: tuple[int, ...]
    upload_bytes: tuple[float, ...]
    download_bytes: tuple[float, ...]
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

    def __init__(
        self,
        task: Task,
        setting: RoundSetting,
        step_sizes: Sequence[float],
        seeds: Sequence[int],
        *,
        goes_on: bool = False,
    ) -> None:
        self.setting, self._task, self._problem, self._goes_on = setting, task, task.problem, goes_on
        self._executor = choose_executor("auto", task.problem, setting.clients_per_round)
        self._uplink = choose_uplink(setting.quantizer, Mean(), task.problem)
        size = (len(step_sizes), len(seeds))
        self._configs = [[task.config(setting, step_size, seed) for seed in seeds] for step_size in step_sizes]
        self.losses: Float64 = np.full(size, task.initial_loss)  # as watched: (candidates, seeds)
        self._up, self._down, self._sending = np.zeros(size), np.zeros(size), np.zeros(size)
        self._last_sending = 0.0  # of the last round, the mean over runs
        self._first = np.zeros(size, np.int64)  # the round in which a seed reached the target; 0: not yet
        self.candidates = [Candidate(setting, step_size, [task.initial_loss], [0.0]) for step_size in step_sizes]
        self.round, self.gradient_steps = 0, 0

    @property
    def alive(self) -> list[Candidate]:
        """The candidates still running."""
        return [candidate for candidate in self.candidates if candidate.alive]

    @cached_property
    def params(self) -> Float32:
        """x_k of every run (candidates, seeds, p); many pilots of a race never need it."""
        return self._broadcast.params.reshape(*self.losses.shape, -1).copy()

    @cached_property
    def _broadcast(self) -> Broadcast:
        seeds = [config.seed for row in self._configs for config in row]
        return self.setting.downlink.open(seeds, self._problem.num_clients, self._problem.initial_params)

    def spent(self) -> dict[str, float]:
        """Return the means over all runs so far: seconds, and bytes up and down."""
        seconds = self.round * self._task.computing_seconds(self.setting) + float(self._sending.mean())
        down = float(self._down.mean())
        return {"seconds": seconds, "upload_bytes": float(self._up.mean()), "download_bytes": down}

    def next_seconds(self) -> float:
        """Return when the next round would end if it sends as much as the last."""
        computing = self._task.computing_seconds(self.setting)
        if self.round:
            sending = float(self._sending[self._running()].mean()) + self._last_sending
        else:
            r = self.setting.clients_per_round
            uploaded = r * self._task.upload_bytes(self.setting.quantizer)
            downloaded = np.full(r, self._task.first_download_bytes(self.setting.downlink))
            sending = self._task.sending_seconds(self.setting, uploaded, downloaded)
        return (self.round + 1) * computing + sending

    def play(self) -> None:
        """Play one round, lines 2 to 11 of Algorithm 1, of every run that is not at the target yet."""
        running = self._running()
        configs = [self._configs[row][column] for row, column in np.argwhere(running)]
        played = play_round(
            self._problem,
            configs,
            self.round,
            np.flatnonzero(running),
            self.params[running],  # (runs, p)
            self._executor,
            self._uplink,
            self._broadcast,
        )
        self.round += 1
        self.gradient_steps += len(configs) * self.setting.clients_per_round * self.setting.local_steps
        params = to_array(played.params)
        self.params[running] = params
        self._up[running] += played.payload_bytes
        self._down[running] += played.download_bytes.sum(axis=1)
        sending = [
            self._task.sending_seconds(self.setting, *sent)
            for sent in zip(played.payload_bytes, played.download_bytes, strict=True)
        ]
        self._sending[running] += sending
        self._last_sending = float(np.mean(sending))
        self.losses[running] = self._task.losses(params)
        self._first[running & (self.losses <= self._task.watched_target) & (self._first == 0)] = self.round
        for row, candidate in enumerate(self.candidates):
            if candidate.alive:
                self._record(row, candidate)

    def _running(self) -> Bools:
        """Return which runs (candidates, seeds) are alive and not at the target, or go on from there."""
        alive = np.array([candidate.alive for candidate in self.candidates])
        return np.asarray(alive[:, None] & ((self._first == 0) | self._goes_on))

    def _record(self, row: int, candidate: Candidate) -> None:
        computing, sending = self._task.computing_seconds(self.setting), self._sending[row]
        candidate.losses.append(float(self.losses[row].mean()))
        candidate.seconds.append(self.round * computing + float(sending.max()))
        candidate.alive = bool(np.isfinite(self.losses[row]).all())
        if self._first[row].all():
            rounds = self._first[row]
            candidate.finish = Finish(
                rounds=tuple(rounds.tolist()),
                upload_bytes=tuple(self._up[row].tolist()),
                download_bytes=tuple(self._down[row].tolist()),
                sending_seconds=tuple(sending.tolist()),
                seconds=float(rounds.mean() * computing + sending.mean()),
                slowest=float(rounds.max() * computing + sending.max()),
            )
