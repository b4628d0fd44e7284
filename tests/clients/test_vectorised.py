"""Vectorised: many clients as one computation, in chunks that fit, for modules that vmap can take."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

import fedpaq
from fedpaq.clients import Vectorised, local_work
from fedpaq.clients.vectorised import COPIES, reason_not_vectorisable
from small_problems import make_problem


def work_of(problem, clients=6):
    config = fedpaq.FedPAQConfig(clients_per_round=clients, local_steps=2, total_steps=2, batch_size=4, step_size=0.1)
    (work,) = local_work(problem, [config], 0, problem.initial_params[None], np.arange(clients)[None])
    return work


def test_any_chunk_gives_the_updates_of_the_whole():
    problem = make_problem("convnet")
    work = work_of(problem)
    whole = Vectorised(chunk_size=6).local_updates(problem, work)
    for chunk in (1, 4):
        torch.testing.assert_close(Vectorised(chunk_size=chunk).local_updates(problem, work), whole)


def test_a_chunk_holds_as_many_clients_as_the_memory_takes():
    problem = make_problem("mlp")
    work = work_of(problem)
    each = COPIES * 4 * problem.dimension + 3 * 4 * 10 * problem.inputs[0].numel()
    for jobs in (1, 3):
        assert Vectorised(memory_budget=jobs * each)._jobs_per_chunk(problem, work) == jobs
    assert Vectorised(memory_budget=1)._jobs_per_chunk(problem, work) == 1  # never nothing


def test_the_reason_against_vmap_is_named():
    assert reason_not_vectorisable(make_problem("convnet")) is None
    problem = fedpaq.Problem(
        model=nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2)),
        loss=nn.functional.cross_entropy,
        inputs=torch.randn(10, 3),
        targets=torch.zeros(10, dtype=torch.int64),
        partition=fedpaq.problems.iid(10, 2),
    )
    assert "dropout" in reason_not_vectorisable(problem)
