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


def test_a_module_vmap_cannot_take_is_captured_and_only_who_asked_for_vmap_is_told():
    problem = batch_norm_problem()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert choose_executor("auto", problem).name == "captured"
    with pytest.warns(UserWarning, match="vmap cannot take this module") as caught:
        assert choose_executor("vectorised", problem).name == "captured"
    assert len(caught) == 1
    before = {key: value.clone() for key, value in problem.model.state_dict().items()}
    config = fedpaq.FedPAQConfig(clients_per_round=2, local_steps=2, total_steps=4, batch_size=5, step_size=0.1)
    for name in ("sequential", "captured"):
        fedpaq.train(problem, config, executor=name)
        for key, value in problem.model.state_dict().items():
            assert torch.equal(value, before[key]), "training must not touch the user's module"


def test_auto_takes_the_dense_executor_where_it_can():
    assert choose_executor("auto", make_problem("mlp")).name == "dense"


def test_for_other_modules_auto_times_what_fits_once_and_remembers(monkeypatch):
    problem = make_problem("convnet")
    tried = []
    seconds = {"vectorised": 0.002, "captured": 0.001}

    def pretend(executor, problem, clients, like):
        tried.append((executor.name, clients))
        return seconds[executor.name]

    monkeypatch.setattr(choice, "_seconds", pretend)
    assert choose_executor("auto", problem, 5).name == "captured"
    assert choose_executor("auto", problem, 6).name == "captured"
    assert tried == [("captured", 1), ("captured", 5), ("vectorised", 5)]
    seconds["vectorised"] = 0.0009  # at another number of clients
    assert choose_executor("auto", problem, 8).name == "vectorised"
    assert choose_executor("vectorised", problem, 5).name == "vectorised"
    tried.clear()
    seconds["captured"] = 1.0  # a step so long that trying vmap would cost more than it could gain
    assert choose_executor("auto", problem, 16).name == "captured"
    assert tried == [("captured", 1)]


def test_trying_out_executors_takes_real_time():
    problem = make_problem("convnet")
    like = fedpaq.FedPAQConfig(clients_per_round=4, local_steps=1, total_steps=1, step_size=1e-3)
    assert choice._seconds(Vectorised(), problem, 4, like) > 0
    assert choose_executor("auto", problem, 4).name in ("vectorised", "captured")


def test_an_unknown_executor_is_refused_with_the_nearest_name(logistic):
    with pytest.raises(ConfigError, match=r"unknown executor 'vectorized'.*did you mean 'vectorised'"):
        choose_executor("vectorized", logistic)
    assert set(EXECUTORS) >= {"sequential", "vectorised", "dense"}
