"""Minibatches: each client's own samples, whatever the cut, all of them in full batches."""

from __future__ import annotations

import numpy as np

import fedpaq
from fedpaq.clients import local_work
from small_problems import make_problem
from small_work import work_of


def test_full_batches_of_unequal_clients_use_every_sample_once_a_step():
    problem = make_problem("mlp", num_clients=7)  # 160 samples: sizes 23 and 22
    config = fedpaq.FedPAQConfig(clients_per_round=7, local_steps=2, total_steps=2, batch_size=None, step_size=0.1)
    parts = list(local_work(problem, [config], 0, problem.initial_params[None], np.arange(7)[None]))
    seen = np.concatenate([part.clients for part in parts])
    assert np.array_equal(seen, np.arange(7))
    for part in parts:
        for job, client in enumerate(part.clients):
            for step in range(2):
                assert np.array_equal(part.samples[job, step], problem.partition.samples_of(client))


def test_minibatches_come_from_the_client_s_own_samples(problem, config):
    work = work_of(problem, config)
    for job, client in enumerate(work.clients):
        assert np.isin(work.samples[job], problem.partition.samples_of(client)).all()


def test_draws_do_not_depend_on_how_the_round_is_cut(problem, config):
    participants = np.arange(5)[None]
    whole = next(local_work(problem, [config], 1, problem.initial_params[None], participants))
    parts = list(local_work(problem, [config], 1, problem.initial_params[None], participants, memory_budget=1))
    assert len(parts) == 5
    assert np.array_equal(whole.samples, np.concatenate([part.samples for part in parts]))
