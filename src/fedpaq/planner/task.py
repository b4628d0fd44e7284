"""Task: what is to be reached, on which network, and the samples its loss is watched on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedpaq.config import require_int, require_positive
from fedpaq.cost_model import CostModel
from fedpaq.errors import ConfigError
from fedpaq.planner.search_space import LEVELS, LOCAL_STEPS, STEP_SIZES, SearchSpace, default_cohorts
from fedpaq.problems import Problem, iid
from fedpaq.randomness import Key, Purpose, permutation
from fedpaq.theory.estimators import descend, largest_curvature
from fedpaq.theory.landscape import Landscape

WATCHED = 1000  # samples


@dataclass(frozen=True, kw_only=True)
class Task:
    """Reach ``target_loss`` on ``problem``, asking at most ``max_clients`` a round, under ``cost_model``."""

    problem: Problem
    target_loss: float
    cost_model: CostModel
    max_clients: int
    batch_size: int | None = 10
    max_steps: int = 2000

    def __post_init__(self) -> None:
        require_positive("target_loss", self.target_loss)
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
                f"accounting={self.cost_model.accounting!r} is not planned with; a plan charges real payloads, "
                "so choose 'payload'"
            )

    @cached_property
    def watched(self) -> Problem:
        """The same problem on some of its samples: looking at all after every round costs too much."""
        problem = self.problem
        held = np.unique(problem.partition.indices)
        chosen = held[np.sort(permutation(Purpose.CHECK, Key(seed=0), len(held))[:WATCHED])]
        return Problem(
            model=problem.model,
            loss=problem.loss,
            inputs=problem.inputs[chosen],
            targets=problem.targets[chosen],
            partition=iid(len(chosen), 1),
            regularization=problem.regularization,
            name=problem.name,
        )

    def default_space(self) -> SearchSpace:
        """Return the default choices; step sizes are multiples of one over the curvature at the start."""
        start = np.asarray(self.problem.initial_params, np.float64)
        curvature = largest_curvature(Landscape(self.watched), start)
        return SearchSpace(
            local_steps=LOCAL_STEPS,
            clients_per_round=default_cohorts(self.max_clients),
            levels=LEVELS,
            step_sizes=[float(f"{factor / curvature:.4g}") for factor in STEP_SIZES],
        )

    def require_reachable(self) -> None:
        """Raise ConfigError if training starts below the target, or a descent does not get there."""
        landscape = Landscape(self.problem)
        start = np.asarray(self.problem.initial_params, np.float64)
        first = landscape.value(start)
        if first <= self.target_loss:
            raise ConfigError(
                f"target_loss={self.target_loss} is not below the loss before training, {first:.4g}; aim lower"
            )
        least = landscape.value(descend(landscape, start, enough=self.target_loss))
        if least > self.target_loss:
            raise ConfigError(
                f"target_loss={self.target_loss} is below {least:.4g}, the least training loss that a descent "
                "on all samples finds; aim higher, or lower the regularization"
            )
