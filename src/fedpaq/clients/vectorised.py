"""Vectorised: all clients of a chunk as one batched computation (torch.func.vmap over grad)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedpaq.clients.work import LocalWork
from fedpaq.problems import Problem

MEMORY_BUDGET = 512 * 2**20  # bytes
COPIES = 6  # of each client's params alive at once: start, params, gradient, update, two temporaries


@dataclass(frozen=True)
class Vectorised:
    """Chunks clients to ``memory_budget`` bytes, or to ``chunk_size`` clients when given."""

    chunk_size: int | None = None
    memory_budget: int = MEMORY_BUDGET
    name: str = "vectorised"

    def local_updates(self, problem: Problem, work: LocalWork) -> Tensor:
        """Return x_{k,tau}^(i) - x_k for every job: (jobs, p)."""
        start = torch.as_tensor(work.params)  # (runs, p)
        updates = torch.empty(len(work), problem.dimension, device=start.device)
        for jobs, part in work.chunks(self._jobs_per_chunk(problem, work)):
            updates[jobs] = self._descend(problem, part, start)
        return updates

    def _jobs_per_chunk(self, problem: Problem, work: LocalWork) -> int:
        if self.chunk_size is not None:
            return self.chunk_size
        sample_bytes = problem.inputs[0].numel() * 4 * work.samples.shape[2]
        per_job = COPIES * 4 * problem.dimension + 3 * sample_bytes
        return max(1, int(self.memory_budget // per_job))

    @staticmethod
    def _descend(problem: Problem, work: LocalWork, start: Tensor) -> Tensor:
        gradients = torch.func.vmap(problem.gradient)
        run_of = torch.from_numpy(work.run_of).to(start.device)
        step_sizes = torch.from_numpy(work.step_sizes).to(start.device)[run_of][:, None]  # (c, 1)
        received = start[run_of]  # (c, p)
        params = received.clone()
        for step in range(work.samples.shape[1]):
            inputs, targets = problem.batch(work.samples[:, step])  # (c, B, ...)
            params = params - step_sizes * gradients(params, inputs, targets)
        return params - received


def reason_not_vectorisable(problem: Problem) -> str | None:
    """Return why vmap cannot take this problem's module, or None if it can: tried on two samples."""
    if problem.draws_at_random:
        return "the module draws random numbers (dropout), which vmap would share between clients"
    params = torch.from_numpy(problem.initial_params).to(problem.inputs.device).expand(2, -1)
    inputs, targets = (
        values[:2].unsqueeze(0).expand(2, 2, *values.shape[1:])
        if len(values) > 1
        else values[:1].unsqueeze(0).expand(2, 1, *values.shape[1:])
        for values in (problem.inputs, problem.targets)
    )
    try:
        torch.func.vmap(problem.gradient)(params, inputs, targets)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return None
