"""LOCAL WORK of the participants. An executor turns a round's ``LocalWork`` into updates (jobs, p).

Every executor sees the same draws; they differ in speed and, by float rounding, in the last bits.
"""

from fedpaq.clients.batched import Batched
from fedpaq.clients.captured import Captured
from fedpaq.clients.choice import EXECUTORS, Executor, choose_executor
from fedpaq.clients.dense import Dense
from fedpaq.clients.sequential import Sequential, train_one_client
from fedpaq.clients.vectorised import Vectorised
from fedpaq.clients.work import LocalWork, draw_participants, local_work

__all__ = [
    "EXECUTORS",
    "Batched",
    "Captured",
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
