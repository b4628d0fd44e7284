"""Measurement: the left sides of Theorems 1 and 2, averaged over runs.

Theorem 1 is about ||x_k - x*||^2 and Theorem 2 about ||grad f(xbar_{k,t})||^2, where xbar averages the
iterates of *all* n clients, most of which do no work in a round. Draws are stateless, so the steps
that idle clients would have taken are computed from the same x_k without disturbing the run.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from fedpaq.algorithm import sweep
from fedpaq.arrays import Float32, Float64
from fedpaq.clients import local_work
from fedpaq.config import FedPAQConfig, require_int
from fedpaq.errors import DivergedError
from fedpaq.problems import Problem
from fedpaq.quantizers import Quantizer
from fedpaq.run.history import Record
from fedpaq.run.recorder import Callback
from fedpaq.theory.full_loss import FullLoss


def with_seeds(config: FedPAQConfig, num_seeds: int) -> list[FedPAQConfig]:
    """Return the config with seeds 0, 1, ..."""
    require_int("num_seeds", num_seeds, 1)
    return [replace(config, seed=seed) for seed in range(num_seeds)]


def squared_errors(
    problem: Problem, configs: Sequence[FedPAQConfig], optimum: Float64, *, quantizer: Quantizer | None = None
) -> Float64:
    """Return ||x_k - x*||^2 of each run before the first and after every round: (runs, K + 1)."""
    errors = np.full((len(configs), configs[0].num_rounds + 1), np.nan)

    def measure(run: int, record: Record, params: Float32) -> None:
        errors[run, record.round] = np.square(params - optimum).sum()

    _sweep(problem, configs, quantizer, measure)
    return errors


def mean_squared_gradients(
    problem: Problem, configs: Sequence[FedPAQConfig], *, quantizer: Quantizer | None = None
) -> Float64:
    """Return 1/T sum_k sum_t ||grad f(xbar_{k,t})||^2 of each run: (runs,)."""
    full_loss, config = FullLoss(problem), configs[0]
    received = np.empty((len(configs), problem.dimension), np.float32)  # x_k of every run
    totals = np.zeros(len(configs))

    def measure(run: int, record: Record, params: Float32) -> None:
        received[run] = params
        if run == len(configs) - 1 and record.round < config.num_rounds:
            for means in virtual_means(problem, configs, record.round, received):
                totals[:] += full_loss.squared_gradients(means)

    _sweep(problem, configs, quantizer, measure)
    return totals / config.total_steps


def virtual_means(problem: Problem, configs: Sequence[FedPAQConfig], round: int, params: Float32) -> list[Float64]:
    """Return xbar_{k,0}, ..., xbar_{k,tau-1} of each run from its x_k: tau times (runs, p)."""
    everyone = np.tile(np.arange(problem.num_clients), (len(configs), 1))
    gradients = torch.func.vmap(torch.func.grad(problem.objective))
    means = [np.zeros((len(configs), problem.dimension)) for _ in range(configs[0].local_steps)]
    for work in local_work(problem, configs, round, params, everyone):
        step_sizes = torch.from_numpy(work.step_sizes[work.run_of])[:, None]
        local = torch.from_numpy(params[work.run_of])  # (jobs, p)
        for step, mean in enumerate(means):
            np.add.at(mean, work.run_of, local.numpy() / problem.num_clients)
            if step < len(means) - 1:
                local = local - step_sizes * gradients(local, *problem.batch(work.samples[:, step]))
    return means


def _sweep(problem: Problem, configs: Sequence[FedPAQConfig], quantizer: Quantizer | None, measure: Callback) -> None:
    histories = sweep(problem, configs, quantizer=quantizer, evaluate_every=0, callback=measure)
    for history in histories:
        if history.diverged is not None:
            raise DivergedError(f"seed={history.config['seed']}: {history.diverged}")
