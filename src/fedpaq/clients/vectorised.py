"""Vectorised: all clients of a chunk as one batched computation (torch.func.vmap over grad)."""

import warnings
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from fedpaq.clients.graphs import Graphs
from fedpaq.clients.steps import Optimizer, autocast
from fedpaq.clients.work import LocalWork
from fedpaq.problems import Problem

MEMORY_BUDGET = {"cpu": 2**29, "cuda": 2**35}  # bytes
COPIES = 6  # of each client's params alive at once: start, params, gradient, update, two temporaries


@dataclass(frozen=True)
class Vectorised:
    """Chunks clients to ``memory_budget`` bytes, or to ``chunk_size`` clients when given.

    On a GPU, small chunks replay a CUDA graph.
    """

    chunk_size: int | None = None
    memory_budget: int | None = None  # default: by device
    name: str = "vectorised"
    graphs: Graphs = field(default_factory=Graphs, repr=False, compare=False)

    def local_updates(self, problem: Problem, work: LocalWork) -> Tensor:
        """Return x_{k,tau}^(i) - x_k for every job: (jobs, p)."""
        device, chunk = problem.inputs.device, self._jobs_per_chunk(problem, work)
        step, key = partial(descend, problem, work), (problem, work.optimizer, work.precision)
        if chunk >= len(work):
            return self.graphs.run(key, step, *work.tensors(device))
        updates = torch.empty(len(work), problem.dimension, device=device, dtype=torch.float32)
        for jobs, part in work.chunks(chunk):
            updates[jobs] = self.graphs.run(key, step, *part.tensors(device))
        return updates

    def _jobs_per_chunk(self, problem: Problem, work: LocalWork) -> int:
        if self.chunk_size is not None:
            return self.chunk_size
        sample_bytes = problem.inputs[0].numel() * 4 * work.samples.shape[2]
        per_job = COPIES * 4 * problem.dimension + 3 * sample_bytes
        budget = self.memory_budget or MEMORY_BUDGET[problem.inputs.device.type]
        return max(1, int(budget // per_job))


def descend(
    problem: Problem, like: LocalWork, received: Tensor, run_of: Tensor, step_sizes: Tensor, samples: Tensor
) -> Tensor:
    """Return the updates (jobs, p) of jobs that start from received[run_of] and see samples (jobs, tau, B).

    The optimizer and the precision are those of the work they are ``like``.
    """
    gradients = torch.func.vmap(problem.gradient)
    rates, start = step_sizes[run_of][:, None], received[run_of]  # (jobs, 1), (jobs, p)
    params = start.clone()
    optimizer = Optimizer(like.optimizer, params)
    for step in range(samples.shape[1]):
        inputs, targets = problem.batch(samples[:, step])  # (jobs, B, ...)
        with autocast(like, params.device):
            gradient = gradients(params, inputs, targets)
        optimizer.step(params, gradient, rates)
    return params.sub_(start)


def reason_not_vectorisable(problem: Problem) -> str | None:
    """Return why vmap cannot take this problem's module, or None if it can: tried on two samples."""
    if problem.draws_at_random:
        return "the module draws random numbers (dropout), which vmap would share between clients"
    params = torch.from_numpy(problem.initial_params).to(problem.inputs.device).expand(2, -1)
    inputs, targets = (first.expand(2, *first.shape) for first in (problem.inputs[:2], problem.targets[:2]))
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*batching rule")  # torch would loop over the clients
            torch.func.vmap(problem.gradient)(params, inputs, targets)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return None
