"""Choice: the executor for a module, tried where nobody knows, remembered, refused by name."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import fedpaq
from fedpaq.clients import EXECUTORS, Vectorised, choice, choose_executor
from fedpaq.errors import ConfigError
from small_problems import make_problem


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


def test_an_unknown_executor_is_refused_with_the_nearest_name(logistic):
    with pytest.raises(ConfigError, match=r"unknown executor 'vectorized'.*did you mean 'vectorised'"):
        choose_executor("vectorized", logistic)
    assert set(EXECUTORS) >= {"sequential", "vectorised", "dense"}
