"""Choice: which executor does a problem's local work, by model, device and number of participants.

Dense networks have executors of their own. For any other module what fits is timed on a few clients, once per
problem, kind of step and order of magnitude of r, and the fastest is remembered: vmap wins for small modules and
many clients, one client after another for large ones.
"""

import time
import warnings
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch

from fedpaq.clients import dense
from fedpaq.clients.batched import Batched
from fedpaq.clients.captured import Captured, reason_not_copied
from fedpaq.clients.dense import Dense
from fedpaq.clients.sequential import Sequential
from fedpaq.clients.vectorised import Vectorised, reason_not_vectorisable
from fedpaq.clients.work import LocalWork, local_work
from fedpaq.config import FedPAQConfig, require_instance_with
from fedpaq.errors import ConfigError, unknown_name
from fedpaq.hardware.ranks import ALONE, Ranks
from fedpaq.problems import Problem

TRIED_CLIENTS = 16  # enough to show what batching them gains
TRIED_SECONDS = 0.2  # for a step of that many clients one by one: what takes longer is too large for vmap to win
STEPS, REPEATS, PATIENCE = 4, 6, 1.0  # local steps of a trial, trials at most, seconds after which one is enough


class Executor(Protocol):
    """Does the local work of a round."""

    @property
    def name(self) -> str:
        """Name for history and tables."""

    def local_updates(self, problem: Problem, work: LocalWork) -> Any:
        """Return x_{k,tau}^(i) - x_k for every job: (jobs, p) float32 array or tensor."""


EXECUTORS: dict[str, Callable[[], Executor]] = {
    "sequential": Sequential,
    "vectorised": Vectorised,
    "dense": Dense,
    "batched": Batched,
    "captured": Captured,
}
TIMED = ("captured", "vectorised", "sequential")  # between which ``auto`` decides by the clock
_remembered: weakref.WeakKeyDictionary[Problem, dict[Any, str]] = weakref.WeakKeyDictionary()


def choose_executor(
    executor: str | Executor,
    problem: Problem,
    clients_per_round: int = 25,
    ranks: Ranks = ALONE,
    like: FedPAQConfig | None = None,
    begun_with: Callable[[], str | None] = lambda: None,
) -> Executor:
    """Return the executor named, or for ``auto`` the fastest that can take this problem's module.

    Batch size, optimizer and precision are those of a config it is ``like``. The first rank chooses for all. Where
    ``auto`` would be a matter of timing, a run that was ``begun_with`` one of the candidates keeps it.
    """
    if not isinstance(executor, str):
        require_instance_with("executor", executor, ("name", "local_updates"), "'auto', 'sequential'")
        return executor
    like = like or FedPAQConfig(clients_per_round=1, local_steps=1, total_steps=1, step_size=1e-3)
    name = _choose(executor, problem, clients_per_round, like, begun_with) if ranks.is_first else ""
    return EXECUTORS[ranks.broadcast(name.encode()).decode()]()


def _choose(
    executor: str, problem: Problem, clients_per_round: int, like: FedPAQConfig, begun_with: Callable[[], str | None]
) -> str:
    """Return the executor's name."""
    if executor not in ("auto", *EXECUTORS):
        raise unknown_name("executor", executor, ("auto", *EXECUTORS))
    if (own := _own_mathematics(problem)) is not None:
        if executor not in ("auto", "sequential"):
            raise ConfigError(f"executor={executor!r} does not call {own}; choose 'sequential'")
        return "sequential"
    if executor == "vectorised" and (reason := reason_not_vectorisable(problem)) is not None:
        warnings.warn(f"executor='vectorised': vmap cannot take this module ({reason}); using 'captured'", stacklevel=4)
        executor = "captured"
    if executor != "auto":
        return executor
    if (like.optimizer, like.precision) == ("sgd", "float32") and problem.dense_network is not None:
        if dense.is_available(problem):
            return "dense"
        if problem.inputs.device.type == "cuda":
            return "batched"
    if (begun := begun_with()) in TIMED:
        return begun
    remembered = _remembered.setdefault(problem, {})
    key = (clients_per_round.bit_length(), like.batch_size, like.optimizer, like.precision)
    if key not in remembered:
        remembered[key] = _fastest(problem, clients_per_round, like)
    return remembered[key]


def _own_mathematics(problem: Problem) -> str | None:
    """Return a method that a subclass of Problem has changed and that only ``Sequential`` calls, or None."""
    for name in ("objective", "outputs", "call", "gradient", "batch"):
        if getattr(type(problem), name) is not getattr(Problem, name):
            return f"{type(problem).__name__}.{name}"
    return None


def _fastest(problem: Problem, clients_per_round: int, like: FedPAQConfig) -> str:
    """Return the name of the fastest executor on a few of this problem's clients."""
    clients = min(clients_per_round, TRIED_CLIENTS, problem.num_clients)
    looped: Executor = Captured() if reason_not_copied(problem) is None else Sequential()
    if clients * _seconds(looped, problem, 1, like) > TRIED_SECONDS or reason_not_vectorisable(problem) is not None:
        return looped.name
    by_name = {each.name: _seconds(each, problem, clients, like) for each in (looped, Vectorised())}
    return min(by_name, key=by_name.__getitem__)


def _seconds(executor: Executor, problem: Problem, clients: int, like: FedPAQConfig) -> float:
    """Return the least seconds of a local step of some clients, after a warm-up."""
    config = replace(like, clients_per_round=clients, local_steps=STEPS, total_steps=STEPS, step_size=1e-3)
    (work, *_) = local_work(problem, [config], 0, problem.initial_params[None], np.arange(clients)[None])
    times: list[float] = []
    while len(times) < 2 or (len(times) < REPEATS and sum(times[1:]) < TRIED_SECONDS):
        start = time.perf_counter()
        executor.local_updates(problem, work)
        if problem.inputs.is_cuda:
            torch.cuda.synchronize(problem.inputs.device)
        times.append(time.perf_counter() - start)
        if times[0] > PATIENCE:  # a warm-up does not take so long, the steps do
            break
    return min(times[1:] or times) / STEPS
