"""Sequential: one client after another with plain autograd. The twin to read, and the oracle."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpaq.arrays import Float32
from fedpaq.clients.steps import Optimizer, autocast
from fedpaq.clients.work import LocalWork, local_work
from fedpaq.config import FedPAQConfig, require_int
from fedpaq.errors import ConfigError
from fedpaq.problems import Problem
from fedpaq.randomness import Key, Purpose, words


@dataclass(frozen=True)
class Sequential:
    """Takes any module; costs a Python loop over clients and steps."""

    name: str = "sequential"

    def local_updates(self, problem: Problem, work: LocalWork) -> Tensor:
        """Return x_{k,tau}^(i) - x_k for every job: (jobs, p)."""
        start = torch.as_tensor(work.params, device=problem.inputs.device)  # (runs, p)
        updates = torch.empty(len(work), problem.dimension, device=start.device, dtype=torch.float32)
        for job in range(len(work)):
            received = start[work.run_of[job]]
            with private_randomness(problem, work, job):
                updates[job] = self.descend(problem, work, job, received) - received
        return updates

    @staticmethod
    def descend(problem: Problem, work: LocalWork, job: int, received: Tensor) -> Tensor:
        """Return x_{k,tau}^(i) of one job, from the ``received`` x_k (p,)."""
        params = received.clone()  # Alg. 1, line 5
        step_size = float(work.step_sizes[work.run_of[job]])
        optimizer = Optimizer(work.optimizer, params)
        for samples in work.samples[job]:  # Alg. 1, line 6
            inputs, targets = problem.batch(samples)
            params.requires_grad_(True)
            with autocast(work, params.device):
                value = problem.objective(params, inputs, targets)
            (gradient,) = torch.autograd.grad(value, params)
            params = params.detach()
            optimizer.step(params, gradient, step_size)  # Alg. 1, line 9
        return params


@contextmanager
def private_randomness(problem: Problem, work: LocalWork, job: int) -> Iterator[None]:
    """Seed torch's generator for one job of a module with dropout, and put it back afterwards."""
    if not problem.draws_at_random:
        yield
        return
    key = Key(seed=int(work.seeds[job]), round=work.round, client=int(work.clients[job]))
    cudnn, gpus = torch.backends.cudnn.enabled, [problem.inputs.device] if problem.inputs.is_cuda else []
    with torch.random.fork_rng(devices=gpus):
        torch.manual_seed(int(words(Purpose.MODULE, key, 1)[0]))
        torch.backends.cudnn.enabled = cudnn and not problem.is_recurrent  # whose dropout keeps a state of its own
        try:
            yield
        finally:
            torch.backends.cudnn.enabled = cudnn


def train_one_client(problem: Problem, config: FedPAQConfig, *, round: int, client: int, params: Any) -> Float32:
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
