"""Executors: same draws, same updates as a hand-written SGD loop, whatever the chunking."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import nn

import fedpaq
from fedpaq.clients import EXECUTORS, Dense, Sequential, Vectorised, choice, choose_executor, local_work
from fedpaq.errors import ConfigError
from fedpaq.kernels import numba as compiled
from small_problems import make_problem


def work_of(problem, config, round=2):
    participants = np.stack([np.arange(config.clients_per_round), np.arange(config.clients_per_round) + 2])
    params = np.stack([problem.initial_params, problem.initial_params * np.float32(0.5)])
    second = fedpaq.FedPAQConfig(**{**config.to_dict(), "seed": 12, "step_size": 0.2})
    (work,) = local_work(problem, [config, second], round, params, participants)
    return work


def sgd_by_hand(problem, work):
    """The same local steps with torch.optim.SGD on the module itself."""
    updates = []
    for job in range(len(work)):
        received = torch.from_numpy(work.params[work.run_of[job]].copy())
        module = problem.model
        saved = [value.detach().clone() for value in module.parameters()]
        try:
            nn.utils.vector_to_parameters(received.clone(), module.parameters())
            optimizer = torch.optim.SGD(
                module.parameters(),
                lr=float(work.step_sizes[work.run_of[job]]),
                weight_decay=problem.regularization,
            )
            for samples in work.samples[job]:
                optimizer.zero_grad()
                problem.loss(module(problem.inputs[samples]), problem.targets[samples]).backward()
                optimizer.step()
            updates.append(nn.utils.parameters_to_vector(module.parameters()).detach() - received)
        finally:
            for value, old in zip(module.parameters(), saved, strict=True):
                value.data = old
    return torch.stack(updates).numpy()


def executors_for(problem):
    chosen = [Sequential(), Vectorised(), Vectorised(chunk_size=1), Vectorised(chunk_size=3)]
    return [*chosen, Dense()] if problem.dense_network is not None else chosen


def test_every_executor_agrees_with_a_hand_written_sgd_loop(problem, config):
    work = work_of(problem, config)
    expected = sgd_by_hand(problem, work)
    for executor in executors_for(problem):
        updates = np.asarray(executor.local_updates(problem, work))
        assert updates.dtype == np.float32
        assert np.abs(updates - expected).max() < 1e-5, executor


def test_full_batches_of_unequal_clients_use_every_sample_once_a_step():
    problem = make_problem("mlp", num_clients=7)  # 160 samples: sizes 23 and 22
    config = fedpaq.FedPAQConfig(
        clients_per_round=7, local_steps=2, total_steps=2, batch_size=None, step_size=0.1
    )
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
    losses = {
        "cross-entropy": nn.CrossEntropyLoss(),
        "logistic": nn.BCEWithLogitsLoss(),
        "squared": nn.MSELoss(),
    }
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


@pytest.mark.parametrize(
    ("model", "loss"),
    [
        (nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)), nn.CrossEntropyLoss()),
        (nn.Sequential(nn.Linear(4, 2), nn.ReLU()), nn.CrossEntropyLoss()),
        (nn.Linear(4, 2, bias=False), nn.CrossEntropyLoss()),
        (nn.Linear(4, 2), nn.CrossEntropyLoss(label_smoothing=0.1)),
        (nn.Linear(4, 2), lambda outputs, targets: nn.functional.cross_entropy(outputs, targets)),
    ],
)
def test_models_and_losses_that_differ_are_not_taken_for_dense_networks(model, loss):
    problem = fedpaq.Problem(
        model=model, loss=loss, inputs=np.zeros((6, 4), np.float32), targets=np.zeros(6, int),
        partition=fedpaq.problems.iid(6, 2),
    )  # fmt: skip
    assert problem.dense_network is None


def batch_norm_problem():
    torch.manual_seed(0)
    return fedpaq.Problem(
        model=nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)),
        loss=nn.functional.cross_entropy,
        inputs=torch.randn(40, 5),
        targets=torch.randint(0, 2, (40,)),
        partition=fedpaq.problems.iid(40, 4),
    )


@pytest.mark.parametrize("name", ["auto", "vectorised"])
def test_a_module_vmap_cannot_take_falls_back_loudly_once(name):
    problem = batch_norm_problem()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        executor = choose_executor(name, problem)
    assert executor.name == "sequential"
    assert len(caught) == 1
    assert "vmap cannot take this module" in str(caught[0].message)
    before = {key: value.clone() for key, value in problem.model.state_dict().items()}
    config = fedpaq.FedPAQConfig(clients_per_round=2, local_steps=2, total_steps=4, batch_size=5, step_size=0.1)
    fedpaq.train(problem, config, executor="sequential")
    for key, value in problem.model.state_dict().items():
        assert torch.equal(value, before[key]), "training must not touch the user's module"


def test_dropout_is_reproducible_and_leaves_torch_s_generator_alone():
    torch.manual_seed(0)
    problem = fedpaq.Problem(
        model=nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 2)),
        loss=nn.functional.cross_entropy,
        inputs=torch.randn(40, 5),
        targets=torch.randint(0, 2, (40,)),
        partition=fedpaq.problems.iid(40, 4),
    )
    config = fedpaq.FedPAQConfig(clients_per_round=2, local_steps=2, total_steps=4, batch_size=5, step_size=0.1)
    with pytest.warns(UserWarning, match="dropout"):
        assert choose_executor("auto", problem).name == "sequential"
    state = torch.random.get_rng_state()
    first = fedpaq.train(problem, config, executor="sequential")
    second = fedpaq.train(problem, config, executor="sequential")
    assert np.array_equal(first.params, second.params)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_auto_takes_the_dense_executor_where_it_can():
    assert choose_executor("auto", make_problem("mlp")).name == "dense"


def test_for_other_modules_auto_tries_vmap_and_the_loop_once_and_remembers(monkeypatch):
    problem = make_problem("convnet")
    tried = []
    seconds = {"vectorised": 2.0, "sequential": 1.0}

    def pretend(executor, problem, clients):
        tried.append((executor.name, clients))
        return seconds[executor.name]

    monkeypatch.setattr(choice, "_seconds", pretend)
    assert choose_executor("auto", problem, 5).name == "sequential"
    assert choose_executor("auto", problem, 6).name == "sequential"
    assert tried == [("vectorised", 5), ("sequential", 5)]
    seconds["vectorised"] = 1.1  # a near tie at another number of clients stays with vmap
    assert choose_executor("auto", problem, 8).name == "vectorised"
    assert choose_executor("vectorised", problem, 5).name == "vectorised"


def test_trying_out_executors_takes_real_time():
    problem = make_problem("convnet")
    assert choice._seconds(Vectorised(), problem, 4) > 0
    assert choose_executor("auto", problem, 4).name in ("vectorised", "sequential")


def test_without_numba_auto_vectorises_and_dense_says_why(monkeypatch, config):
    monkeypatch.setattr(compiled, "load", lambda name: None)
    problem = make_problem("mlp")
    assert choose_executor("auto", problem).name in ("vectorised", "sequential")
    with pytest.raises(ConfigError, match="needs numba"):
        Dense().local_updates(problem, work_of(problem, config))


def test_an_unknown_executor_is_refused_with_the_nearest_name(logistic):
    with pytest.raises(ConfigError, match=r"unknown executor 'vectorized'.*did you mean 'vectorised'"):
        choose_executor("vectorized", logistic)
    assert set(EXECUTORS) >= {"sequential", "vectorised", "dense"}
