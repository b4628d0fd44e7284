"""LocalWork: one round's local work as plain arrays, the same whatever executor does it.

A job is one participant of one run. ``train`` has one run; a sweep has one per step size and
seed. Minibatches are drawn here, before any executor sees the work, so every executor uses the
same samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpaq.arrays import Float32, Int64, UInt64
from fedpaq.config import FedPAQConfig
from fedpaq.hardware.devices import BUDGET, to_tensor
from fedpaq.kernels import cuda
from fedpaq.kernels.threads import cores
from fedpaq.problems import Partition, Problem
from fedpaq.randomness import Key, Keys, minibatches, sample_without_replacement

MEMORY_BUDGET = 2**25  # bytes of the host for the updates and messages alive at once; malloc gives more back each time
BYTES_A_COORDINATE = 6  # float32 update, int8 or int16 level
BYTES_A_SAMPLE = 24  # its number, its position among its client's, and their sum
LARGE = 2**20  # params: such a client keeps a GPU busy, and many at once only take memory


Share = Callable[[int], slice]  # of a number of jobs, which are done here


def whole(jobs: int) -> slice:
    """Do all jobs here."""
    return slice(0, jobs)


@dataclass(frozen=True, eq=False)
class LocalWork:
    """Job j: client ``clients[j]`` takes tau SGD steps from ``params[run_of[j]]``."""

    params: Any  # (runs, p) float32 array or tensor
    run_of: Int64  # (jobs,)
    clients: Int64  # (jobs,)
    seeds: UInt64  # (jobs,)
    step_sizes: Float32  # (runs,)
    samples: Any  # (jobs, tau, B) sample numbers: int64 array, or tensor where the data is on a GPU
    round: int
    optimizer: str = "sgd"
    precision: str = "float32"

    def __len__(self) -> int:
        return len(self.clients)

    def keys(self) -> Keys:
        """Return the key of each job's message."""
        return Keys(self.seeds, np.full(len(self), self.round, np.int64), self.clients)

    def tensors(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return params, run_of, step_sizes and samples on ``device``: what local steps are a function of."""
        params, run_of, step_sizes, samples = (
            to_tensor(values, device) for values in (self.params, self.run_of, self.step_sizes, self.samples)
        )
        return params, run_of, step_sizes, samples

    def part(self, jobs: Any) -> LocalWork:
        """Return the work of some jobs only."""
        return replace(
            self,
            run_of=self.run_of[jobs],
            clients=self.clients[jobs],
            seeds=self.seeds[jobs],
            samples=self.samples[jobs],
        )

    def chunks(self, size: int) -> Iterator[tuple[slice, LocalWork]]:
        """Yield (jobs, their work) in runs of at most ``size`` jobs."""
        for start in range(0, len(self), size):
            jobs = slice(start, min(start + size, len(self)))
            yield jobs, self.part(jobs)


def draw_participants(problem: Problem, configs: Sequence[FedPAQConfig], round: int) -> Int64:
    """Return S_k of each run, ascending: (runs, r)."""
    keys = [Key(seed=config.seed, round=round) for config in configs]
    r = configs[0].clients_per_round
    return np.stack([sample_without_replacement(key, problem.num_clients, r) for key in keys])


def draw_samples(
    partition: Partition, seeds: UInt64, round: int, clients: Int64, local_steps: int, batch_size: int
) -> Int64:
    """Draw each job's minibatches with replacement from its client's own data: (jobs, tau, B)."""
    sizes = partition.sizes(clients)
    positions = minibatches(seeds, round, clients, sizes, local_steps * batch_size)
    samples: Int64 = partition.indices[partition.offsets[clients][:, None] + positions]
    return samples.reshape(len(clients), local_steps, batch_size)


def local_work(
    problem: Problem,
    configs: Sequence[FedPAQConfig],
    round: int,
    params: Any,
    participants: Int64,
    memory_budget: int | None = None,
    share: Share = whole,
) -> Iterator[LocalWork]:
    """Yield the round's work of all runs, run after run in client order, or a ``share`` of the jobs.

    It comes in parts that fit ``memory_budget`` bytes (default: by device). ``participants`` is
    (runs, r). With full batches a part holds clients of one size only.
    """
    runs, per_round = participants.shape
    mine = share(participants.size)
    run_of, clients = np.repeat(np.arange(runs), per_round)[mine], participants.ravel()[mine]
    seeds = np.array([config.seed for config in configs], np.uint64)[run_of]
    step_sizes = np.array([config.step_size_at(round) for config in configs], np.float32)
    shape = configs[0]
    for jobs in _parts(problem.partition, clients, shape.batch_size, _jobs_at_once(problem, shape, memory_budget)):
        samples = samples_of(problem, shape, seeds[jobs], round, clients[jobs])
        yield LocalWork(
            params, run_of[jobs], clients[jobs], seeds[jobs], step_sizes, samples, round,
            shape.optimizer, shape.precision,
        )  # fmt: skip


def samples_of(problem: Problem, shape: FedPAQConfig, seeds: UInt64, round: int, clients: Int64) -> Any:
    """Return the sample numbers of each job's local steps where the data is: (jobs, tau, B)."""
    device, partition = problem.inputs.device, problem.partition
    if shape.batch_size is None:
        rows = whole_clients(partition, clients, shape.local_steps)
        return rows if device.type == "cpu" else to_tensor(rows, device)
    if device.type == "cpu":
        return draw_samples(partition, seeds, round, clients, shape.local_steps, shape.batch_size)
    count = shape.local_steps * shape.batch_size
    samples = torch.empty(len(clients), count, dtype=torch.int64, device=device)
    cuda.load("philox").draw_samples(
        *partition.on(device), to_tensor(seeds, device), round, to_tensor(clients, device), samples
    )
    return samples.view(len(clients), shape.local_steps, shape.batch_size)


def _jobs_at_once(problem: Problem, shape: FedPAQConfig, memory_budget: int | None) -> int:
    batch = shape.batch_size or int(problem.partition.sizes().max())
    if problem.inputs.device.type == "cpu":
        job = BYTES_A_COORDINATE * problem.dimension + BYTES_A_SAMPLE * shape.local_steps * batch
        jobs = (memory_budget or MEMORY_BUDGET) // job
        return max(1, jobs - jobs % cores() if jobs > cores() else jobs)  # so that no core waits for the last client
    gathered = 4 * 2 * batch * problem.inputs[0].numel()  # a step's minibatch, and room for activations
    budget = BUDGET if problem.dimension < LARGE else BUDGET // 8
    return max(1, (memory_budget or budget) // (BYTES_A_COORDINATE * problem.dimension + gathered))


def whole_clients(partition: Partition, clients: Int64, local_steps: int) -> Int64:
    """Return every sample of each client, once per local step: (jobs, tau, m) for clients of one size."""
    rows = np.stack([partition.samples_of(int(client)) for client in clients])
    return np.repeat(rows[:, None, :], local_steps, axis=1)


def _parts(partition: Partition, clients: Int64, batch_size: int | None, jobs_at_once: int) -> Iterator[slice]:
    """Yield runs of jobs, cut at ``jobs_at_once`` and, for full batches, where the client size changes."""
    sizes = partition.sizes(clients)
    start = 0
    while start < len(clients):
        stop = min(start + jobs_at_once, len(clients))
        if batch_size is None:
            other = np.flatnonzero(sizes[start:stop] != sizes[start])
            stop = start + int(other[0]) if other.size else stop
        yield slice(start, stop)
        start = stop
