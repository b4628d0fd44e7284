"""Choice: which executor does a problem's local work, by model, device and number of participants.

Dense networks have executors of their own. For any other module vmap and the sequential loop are
tried on a few clients, once per problem and order of magnitude of r, and the faster one is
remembered: vmap wins for small modules and many clients, a plain loop can win for convolutions.
"""

from __future__ import annotations

import time
import warnings
import weakref
from typing import Any, Protocol

import numpy as np

from fedpaq.clients import dense
from fedpaq.clients.batched import Batched
from fedpaq.clients.dense import Dense
from fedpaq.clients.sequential import Sequential
from fedpaq.clients.vectorised import Vectorised, reason_not_vectorisable
from fedpaq.clients.work import LocalWork, local_work
from fedpaq.config import FedPAQConfig
from fedpaq.errors import unknown_name
from fedpaq.hardware.ranks import ALONE, Ranks
from fedpaq.problems import Problem

TRIED_CLIENTS = 16  # enough to show what batching them gains
MARGIN = 1.2  # the loop must be this much faster to be preferred: near ties stay with vmap


class Executor(Protocol):
    """Does the local work of a round."""

    @property
    def name(self) -> str:
        """Name for history and tables."""

    def local_updates(self, problem: Problem, work: LocalWork) -> Any:
        """Return x_{k,tau}^(i) - x_k for every job: (jobs, p) float32 array or tensor."""


EXECUTORS: dict[str, type[Any]] = {
    "sequential": Sequential,
    "vectorised": Vectorised,
    "dense": Dense,
    "batched": Batched,
}
_remembered: weakref.WeakKeyDictionary[Problem, dict[int, Executor]] = weakref.WeakKeyDictionary()


def choose_executor(
    executor: str | Executor, problem: Problem, clients_per_round: int = 25, ranks: Ranks = ALONE
) -> Executor:
    """Return the executor named, or for ``auto`` the fastest that can take this problem's module.

    The first rank chooses for all.
    """
    if not isinstance(executor, str):
        return executor
    if ranks.size == 1:
        return _choose(executor, problem, clients_per_round)
    name = _choose(executor, problem, clients_per_round).name if ranks.is_first else ""
    agreed: Executor = EXECUTORS[ranks.broadcast(name.encode()).decode()]()
    return agreed


def _choose(executor: str, problem: Problem, clients_per_round: int) -> Executor:
    if executor not in ("auto", *EXECUTORS):
        raise unknown_name("executor", executor, ("auto", *EXECUTORS))
    if executor in ("sequential", "dense", "batched"):
        chosen: Executor = EXECUTORS[executor]()
        return chosen
    if executor == "auto" and dense.is_available(problem):
        return Dense()
    if executor == "auto" and problem.dense_network is not None and problem.inputs.device.type == "cuda":
        return Batched()
    reason = reason_not_vectorisable(problem)
    if reason is None:
        return Vectorised() if executor == "vectorised" else _tried(problem, clients_per_round)
    warnings.warn(
        f"executor={executor!r}: vmap cannot take this module ({reason}); using 'sequential', which is slower",
        stacklevel=4,
    )
    return Sequential()


def _tried(problem: Problem, clients_per_round: int) -> Executor:
    """Return the faster of vmap and the loop on a few of this problem's clients."""
    remembered = _remembered.setdefault(problem, {})
    magnitude = clients_per_round.bit_length()
    if magnitude not in remembered:
        clients = min(clients_per_round, TRIED_CLIENTS, problem.num_clients)
        batched, looped = (_seconds(each, problem, clients) for each in (Vectorised(), Sequential()))
        remembered[magnitude] = Sequential() if looped * MARGIN < batched else Vectorised()
    return remembered[magnitude]


def _seconds(executor: Executor, problem: Problem, clients: int) -> float:
    """Return the least seconds of two local steps of some clients, after a warm-up."""
    config = FedPAQConfig(clients_per_round=clients, local_steps=2, total_steps=2, step_size=1e-3)
    (work, *_) = local_work(problem, [config], 0, problem.initial_params[None], np.arange(clients)[None])
    times = []
    for _ in range(3):
        start = time.perf_counter()
        executor.local_updates(problem, work)
        times.append(time.perf_counter() - start)
    return min(times[1:])
