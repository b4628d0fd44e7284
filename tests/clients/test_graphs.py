"""Graphs: steps captured on a GPU, and plain calls elsewhere."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

import fedpaq
from fedpaq.clients import Batched, local_work
from fedpaq.clients.graphs import Graphs

LOSSES = {
    "cross-entropy": nn.CrossEntropyLoss(),
    "logistic": nn.BCEWithLogitsLoss(),
    "squared": nn.MSELoss(),
}


def problem_with(loss, rng):
    targets = {
        "cross-entropy": rng.integers(0, 4, 40),
        "logistic": rng.integers(0, 2, (40, 4)).astype(np.float32),
        "squared": rng.standard_normal((40, 4)).astype(np.float32),
    }[loss]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(9, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4))
    return fedpaq.Problem(
        model=model,
        loss=LOSSES[loss],
        inputs=rng.standard_normal((40, 9)).astype(np.float32),
        targets=targets,
        partition=fedpaq.problems.iid(40, 4),
        regularization=0.1,
    )


def work_of(problem, runs=1, batch_size=5):
    configs = [
        fedpaq.FedPAQConfig(
            clients_per_round=4, local_steps=3, total_steps=3, batch_size=batch_size, step_size=0.3 / (run + 1)
        )
        for run in range(runs)
    ]
    params = np.stack([problem.initial_params * (run + 1) for run in range(runs)])
    return next(local_work(problem, configs, 0, params, np.tile(np.arange(4), (runs, 1))))


def test_nothing_is_captured_on_a_cpu(rng):
    problem = problem_with("squared", rng)
    work, graphs = work_of(problem), Graphs()
    executor = Batched(graphs=graphs)
    first = executor.local_updates(problem, work)
    assert torch.equal(first, executor.local_updates(problem, work))
    assert graphs._seen == {}
