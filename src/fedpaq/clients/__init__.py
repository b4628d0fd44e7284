"""LOCAL WORK of the participants. An executor turns a round's ``LocalWork`` into updates (jobs, p).

Every executor sees the same draws; they differ in speed and, by float rounding, in the last bits.
"""

from __future__ import annotations

import warnings
from typing import Any, Protocol

from fedpaq.clients import dense
from fedpaq.clients.batched import Batched
from fedpaq.clients.dense import Dense
from fedpaq.clients.one_client import train_one_client
from fedpaq.clients.sequential import Sequential
from fedpaq.clients.vectorised import Vectorised, reason_not_vectorisable
from fedpaq.clients.work import LocalWork, draw_participants, local_work
from fedpaq.errors import unknown_name
from fedpaq.problems import Problem


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


def choose_executor(executor: str | Executor, problem: Problem) -> Executor:
    """Return the executor named, or for ``auto`` the fastest that can take this problem's module."""
    if not isinstance(executor, str):
        return executor
    if executor not in ("auto", *EXECUTORS):
        raise unknown_name("executor", executor, ("auto", *EXECUTORS))
    if executor == "sequential":
        return Sequential()
    if executor == "dense" or (executor == "auto" and dense.is_available(problem)):
        return Dense()
    on_gpu = problem.inputs.device.type == "cuda"
    if executor == "batched" or (executor == "auto" and on_gpu and problem.dense_network is not None):
        return Batched()
    reason = reason_not_vectorisable(problem)
    if reason is None:
        return Vectorised()
    warnings.warn(
        f"executor={executor!r}: vmap cannot take this module ({reason}); using 'sequential', which is slower",
        stacklevel=3,
    )
    return Sequential()


__all__ = [
    "EXECUTORS",
    "Batched",
    "Dense",
    "Executor",
    "LocalWork",
    "Sequential",
    "Vectorised",
    "choose_executor",
    "draw_participants",
    "local_work",
    "train_one_client",
]
