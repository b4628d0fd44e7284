"""One client's local steps, for a process that is that client: a deployment's, or a test's."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedpaq.clients.sequential import Sequential, private_randomness
from fedpaq.clients.work import local_work
from fedpaq.config import FedPAQConfig, require_int
from fedpaq.errors import ConfigError
from fedpaq.problems import Problem


def train_one_client(
    problem: Problem, config: FedPAQConfig, *, round: int, client: int, params: Any
) -> npt.NDArray[np.float32]:
    """Return x_{k,tau}^(i): ``client``'s params after its local steps from ``params``, (p,) float32.

    The draws are those of ``train`` in this round, so x_{k,tau}^(i) - params is, to the bit, the
    update of ``executor="sequential"``.
    """
    require_int("client", client, 0, problem.num_clients - 1)
    received = np.asarray(params, np.float32).copy()[None]  # (1, p); torch warns of arrays that are read-only
    if received.shape != (1, problem.dimension):
        raise ConfigError(
            f"params.shape={received.shape[1:]} does not fit the model; it has dimension={problem.dimension}"
        )
    participants = np.array([[client]], np.int64)
    (work,) = local_work(problem, [config], round, received, participants)
    with private_randomness(problem, work, 0):
        trained = Sequential.descend(problem, work, 0, torch.from_numpy(received[0]))
    return trained.numpy()
