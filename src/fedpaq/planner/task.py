"""Task: the loss to reach, on which network, and the samples it is watched on.

The target, the watched loss and the check that the target can be reached are all the loss that a run
reports (``Problem.evaluate``): the mean over samples, not the theorems' mean over clients.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from fedpaq.algorithm import sweep
from fedpaq.arrays import Float32, Float64, Int64
from fedpaq.clients import draw_participants
from fedpaq.config import FedPAQConfig, require_int, require_positive, round_to_4_digits
from fedpaq.cost_model import CostModel, require_cost_model
from fedpaq.downlink import Downlink
from fedpaq.errors import ConfigError
from fedpaq.planner.search_space import (
    DOWNLINKS,
    LOCAL_STEPS,
    STEP_SIZES,
    SearchSpace,
    default_cohorts,
    default_quantizers,
)
from fedpaq.problems import Problem, iid
from fedpaq.quantizers import Identity, Quantizer
from fedpaq.randomness import Key, Purpose, permutation
from fedpaq.theory.estimators import descend, largest_curvature
from fedpaq.theory.full_loss import FullLoss
from fedpaq.theory.round_setting import RoundSetting

WATCHED = 1000
COHORTS, COHORT_SEED = 4000, 3000  # no other stage uses this seed


@dataclass(frozen=True, kw_only=True)
class Task:
    """Reach ``target_loss`` on ``problem`` with at most ``max_clients`` per round, under ``cost_model``."""

    problem: Problem
    target_loss: float
    cost_model: CostModel
    max_clients: int
    batch_size: int | None = 10
    max_steps: int = 2000
    watched_samples: int | None = WATCHED  # None: all
    _step_seconds: dict[int, float] = field(default_factory=dict, init=False, repr=False, compare=False)
    _upload_bytes: dict[Quantizer, int] = field(default_factory=dict, init=False, repr=False, compare=False)
    _first_download_bytes: dict[Downlink, int] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require_positive("target_loss", self.target_loss)
        require_cost_model(self.cost_model)
        require_int("max_clients", self.max_clients, 1)
        require_int("max_steps", self.max_steps, 1)
        if self.batch_size is not None:
            require_int("batch_size", self.batch_size, 1)
        if self.max_clients > self.problem.num_clients:
            raise ConfigError(
                f"max_clients={self.max_clients} exceeds num_clients={self.problem.num_clients}; "
                f"choose 1..{self.problem.num_clients}"
            )
        if self.cost_model.accounting != "payload":
            raise ConfigError(
                f"accounting={self.cost_model.accounting!r} does not fit; a plan charges real payloads, "
                "so choose 'payload'"
            )

    @cached_property
    def watched(self) -> Problem:
        """The same problem on some of its samples: evaluating all after every round costs too much."""
        problem = self.problem
        held = np.unique(problem.partition.indices)
        if self.watched_samples is None or self.watched_samples >= len(held):
            return problem
        chosen = held[np.sort(permutation(Purpose.CHECK, Key(seed=0), len(held))[: self.watched_samples])]
        return Problem(
            model=problem.model,
            loss=problem.loss,
            inputs=problem.inputs[chosen],
            targets=problem.targets[chosen],
            partition=iid(len(chosen), 1),
            regularization=problem.regularization,
            name=problem.name,
        )

    @cached_property
    def initial_loss(self) -> float:
        """f(x_0) on the watched samples."""
        return self.watched.evaluate(self.problem.initial_params).loss

    def losses(self, params: Float32) -> Float64:
        """Return the watched loss of each row of ``params`` (runs, p), infinite where it is not finite."""
        losses = np.full(len(params), np.inf)
        finite = np.isfinite(params).all(axis=1)
        if finite.any():
            losses[finite] = [found.loss for found in self.watched.evaluate_batch(params[finite])]
        return np.where(np.isfinite(losses), losses, np.inf)

    def samples_per_step(self, clients: Int64) -> Int64:
        """Return how many samples each of ``clients`` uses in a step: B, or all that it has."""
        return self.problem.partition.samples_per_step(clients, self.batch_size)

    def computing_seconds(self, setting: RoundSetting) -> float:
        """Return the mean seconds that a round's slowest client computes."""
        r = setting.clients_per_round
        if self._common_samples is not None:
            gradients = setting.local_steps * self._common_samples
            return self.cost_model.expected_computation_seconds(r, gradients, self.problem.num_clients)
        if r not in self._step_seconds:
            self._step_seconds[r] = self._mean_step_seconds(r)
        return setting.local_steps * self._step_seconds[r]

    @cached_property
    def _common_samples(self) -> int | None:
        """The samples of a step, if they are as many for every client."""
        used = np.unique(self.samples_per_step(np.arange(self.problem.num_clients)))
        return int(used[0]) if len(used) == 1 else None

    def _mean_step_seconds(self, clients_per_round: int) -> float:
        """Return the mean over drawn cohorts of the seconds that the slowest client takes for one step."""
        config = self.config(RoundSetting(1, clients_per_round, Identity()), 1.0, seed=COHORT_SEED)
        cohorts = [draw_participants(self.problem, [config], k)[0] for k in range(COHORTS)]
        price = self.cost_model
        return float(
            np.mean(
                [
                    price.computation_seconds(COHORT_SEED, k, clients, self.samples_per_step(clients))
                    for k, clients in enumerate(cohorts)
                ]
            )
        )

    def sending_seconds(self, setting: RoundSetting, upload_bytes: float, download_bytes: Int64) -> float:
        """Return the seconds of one round besides computing: all its uploads, each participant's download (r,)."""
        price = self.cost_model
        uploading = price.communication_seconds(8 * upload_bytes, self.problem.dimension, setting.clients_per_round)
        return uploading + price.download_seconds(download_bytes) + price.round_seconds

    def config(self, setting: RoundSetting, step_size: float, seed: int, rounds: int = 1) -> FedPAQConfig:
        """Return a run of ``rounds`` rounds."""
        return FedPAQConfig(
            clients_per_round=setting.clients_per_round,
            local_steps=setting.local_steps,
            total_steps=rounds * setting.local_steps,
            batch_size=self.batch_size,
            step_size=step_size,
            seed=seed,
        )

    def upload_bytes(self, quantizer: Quantizer) -> int:
        """Return the real payload of one client after one step from x_0: about what any upload takes."""
        if quantizer not in self._upload_bytes:
            config = self.config(RoundSetting(1, 1, quantizer), 1e-3, seed=0)
            (history,) = sweep(self.problem, [config], quantizer=quantizer, evaluate_every=0)
            self._upload_bytes[quantizer] = history.final.payload_bytes
        return self._upload_bytes[quantizer]

    def first_download_bytes(self, downlink: Downlink) -> int:
        """Return what a client that holds nothing is sent before the first round."""
        if downlink not in self._first_download_bytes:
            broadcast = downlink.open([0], self.problem.num_clients, self.problem.initial_params)
            received = broadcast.send(0, np.zeros(1, np.int64), np.zeros((1, 1), np.int64))
            self._first_download_bytes[downlink] = int(received[0, 0])
        return self._first_download_bytes[downlink]

    def default_space(
        self, quantizers: Sequence[Quantizer | str] | None = None, downlinks: Sequence[Downlink | str] | None = None
    ) -> SearchSpace:
        """Return the default choices; step sizes are multiples of one over the curvature at the start.

        Given ``quantizers`` are the only ones; the default ones are refined around the best. Coded downloads are
        among the choices where the cost model prices downloads.
        """
        start = np.asarray(self.problem.initial_params, np.float64)
        curvature = largest_curvature(FullLoss(self.watched, mean_over="samples"), start)
        default_downlinks = DOWNLINKS if self.cost_model.downlink_bandwidth else DOWNLINKS[:1]
        return SearchSpace(
            local_steps=LOCAL_STEPS,
            clients_per_round=default_cohorts(self.max_clients),
            quantizers=default_quantizers(self.problem.dimension) if quantizers is None else quantizers,
            downlinks=default_downlinks if downlinks is None else downlinks,
            refine=quantizers is None,
            step_sizes=[round_to_4_digits(factor / curvature) for factor in STEP_SIZES],
        )

    def require_reachable(self) -> None:
        """Raise ConfigError if training starts below the target, or a descent cannot reach it."""
        full_loss, start, end = self._descent
        first, least = full_loss.value(start), full_loss.value(end)
        if first <= self.target_loss:
            raise ConfigError(
                f"target_loss={self.target_loss} is not below the loss before training, {first:.4g}; "
                "choose a lower target"
            )
        if least > self.target_loss:
            raise ConfigError(
                f"target_loss={self.target_loss} is below {least:.4g}, the lowest training loss that a descent "
                f"on all samples reaches; choose a target above {least:.4g}, or lower the regularization"
            )

    @cached_property
    def watched_target(self) -> float:
        """The watched loss where the loss on all samples equals the target, on the line of a descent.

        A thousand samples may be easier or harder than all of them, by more than candidates differ.
        """
        if self.watched is self.problem:
            return self.target_loss
        full_loss, start, end = self._descent
        low, high = 0.0, 1.0  # above the target at low, below at high
        for _ in range(10):
            middle = 0.5 * (low + high)
            above = full_loss.value(start + middle * (end - start)) > self.target_loss
            low, high = (middle, high) if above else (low, middle)
        there = start + high * (end - start)
        return self.target_loss + self.watched.evaluate(there).loss - full_loss.value(there)

    @cached_property
    def _descent(self) -> tuple[FullLoss, Float64, Float64]:
        """The loss on all samples, x_0, and the point where a descent first reaches the target (or ends)."""
        full_loss = FullLoss(self.problem, mean_over="samples")
        start = np.asarray(self.problem.initial_params, np.float64)
        return full_loss, start, descend(full_loss, start, enough=self.target_loss)
