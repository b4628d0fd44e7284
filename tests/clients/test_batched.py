"""Batched: the matrix-product executor for GPUs, held to the sequential one on CPU tensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import fedpaq
from fedpaq.clients import Batched, Sequential, local_work
from fedpaq.errors import ConfigError
from small_problems import make_problem

LOSSES = {"cross-entropy": nn.CrossEntropyLoss(), "logistic": nn.BCEWithLogitsLoss(), "squared": nn.MSELoss()}


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


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("batch_size", [5, None])
def test_updates_equal_the_sequential_executor_s(loss, batch_size, rng):
    problem = problem_with(loss, rng)
    work = work_of(problem, batch_size=batch_size)
    updates = Batched().local_updates(problem, work).numpy()
    assert np.abs(updates - Sequential().local_updates(problem, work).numpy()).max() < 1e-5


def test_every_run_of_a_sweep_starts_from_its_own_params_with_its_own_step_size(rng):
    problem = problem_with("cross-entropy", rng)
    work = work_of(problem, runs=3)
    updates = Batched().local_updates(problem, work).numpy()
    assert updates.shape == (12, problem.dimension)
    assert np.abs(updates - Sequential().local_updates(problem, work).numpy()).max() < 1e-5


def test_training_with_it_gives_the_params_of_the_default(config):
    problem = make_problem("mlp")
    params = fedpaq.train(problem, config, executor="batched").params
    np.testing.assert_allclose(params, fedpaq.train(problem, config).params, atol=1e-5)


def test_a_module_it_does_not_know_is_refused(config):
    with pytest.raises(ConfigError, match="needs a dense ReLU network"):
        fedpaq.train(make_problem("convnet"), config, executor="batched")
