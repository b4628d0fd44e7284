"""Dense: compiled local work, the same bits for any cut, each loss, and what it needs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import fedpaq
from fedpaq.clients import Dense, Sequential, choose_executor, dense, local_work
from fedpaq.errors import ConfigError
from fedpaq.kernels import numba as compiled
from small_problems import make_problem
from small_work import work_of


def test_the_dense_executor_is_bit_identical_for_any_cut():
    problem = make_problem("mlp")
    config = fedpaq.FedPAQConfig(clients_per_round=8, local_steps=4, total_steps=4, batch_size=4, step_size=0.1)
    work = next(local_work(problem, [config], 0, problem.initial_params[None], np.arange(8)[None]))
    whole = Dense().local_updates(problem, work)
    parts = np.concatenate([Dense().local_updates(problem, part) for _, part in work.chunks(3)])
    assert np.array_equal(whole, parts)


@pytest.mark.parametrize("loss", ["cross-entropy", "logistic", "squared"])
def test_the_dense_executor_knows_each_loss(loss, rng):
    inputs = rng.standard_normal((40, 9)).astype(np.float32)
    targets = {
        "cross-entropy": rng.integers(0, 4, 40),
        "logistic": rng.integers(0, 2, (40, 4)).astype(np.float32),
        "squared": rng.standard_normal((40, 4)).astype(np.float32),
    }[loss]
    losses = {"cross-entropy": nn.CrossEntropyLoss(), "logistic": nn.BCEWithLogitsLoss(), "squared": nn.MSELoss()}
    torch.manual_seed(0)
    problem = fedpaq.Problem(
        model=nn.Sequential(nn.Linear(9, 6), nn.ReLU(), nn.Linear(6, 4)),
        loss=losses[loss],
        inputs=inputs,
        targets=targets,
        partition=fedpaq.problems.iid(40, 4),
        regularization=0.1,
    )
    assert problem.dense_network is not None and problem.dense_network.loss == loss
    config = fedpaq.FedPAQConfig(clients_per_round=4, local_steps=3, total_steps=3, batch_size=5, step_size=0.3)
    work = next(local_work(problem, [config], 0, problem.initial_params[None], np.arange(4)[None]))
    expected = Sequential().local_updates(problem, work).numpy()
    assert np.abs(Dense().local_updates(problem, work) - expected).max() < 1e-5


def test_without_numba_auto_vectorises_and_dense_says_why(monkeypatch, config):
    monkeypatch.setattr(compiled, "load", lambda name: None)
    problem = make_problem("mlp")
    assert choose_executor("auto", problem).name in ("vectorised", "captured")
    with pytest.raises(ConfigError, match="needs numba"):
        Dense().local_updates(problem, work_of(problem, config))


def test_clients_share_a_product_where_it_is_wide_and_changes_no_bit(monkeypatch):
    assert dense.clients_together((20, 10, 3), 2, 10, False) == 1  # small: BLAS takes it as it is
    assert dense.clients_together((3072, 75, 10), 2, 10, False) in (1, dense.TOGETHER)  # as this BLAS has it
    assert dense.clients_together((3072, 75, 10), 1, 100, False) in (1, 2)  # enough rows
    assert dense.clients_together((3072, 75, 10), 1, 1000, False) == 1  # enough of its own
    assert dense.clients_together((10_000, 1000, 10), 1, 10, False) == 1  # too large to be tried
    kernels = compiled.load("dense_network")

    def inexact(*arguments):
        arguments[-1][:] = arguments[-2]  # depends on how many share it

    monkeypatch.setattr(kernels.local_updates, "alone", inexact, raising=True)
    assert dense.clients_together.__wrapped__((3072, 75, 10), 2, 10, False) == 1


@pytest.mark.parametrize("steps", [1, 4])
def test_a_wide_network_is_bit_identical_for_any_cut(steps, rng):
    model = nn.Sequential(nn.Linear(3072, 75), nn.ReLU(), nn.Linear(75, 10))
    inputs, labels = rng.random((200, 3072), np.float32), rng.integers(0, 10, 200)
    partition = fedpaq.problems.iid(200, 20)
    problem = fedpaq.Problem(
        model=model, loss=nn.functional.cross_entropy, inputs=inputs, targets=labels, partition=partition
    )
    config = fedpaq.FedPAQConfig(clients_per_round=9, local_steps=steps, total_steps=4, batch_size=10, step_size=0.1)
    work = next(local_work(problem, [config], 0, problem.initial_params[None], np.arange(9)[None]))
    whole = Dense().local_updates(problem, work)
    for size in (1, 4):
        parts = np.concatenate([Dense().local_updates(problem, part) for _, part in work.chunks(size)])
        assert np.array_equal(whole, parts)
