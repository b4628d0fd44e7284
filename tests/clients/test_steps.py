"""Steps: the optimizers are PyTorch's, for one client and for many; what compiled executors refuse."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedpaq
from fedpaq.clients import Batched, Dense, Sequential, Vectorised
from fedpaq.clients.steps import Optimizer
from fedpaq.errors import ConfigError
from small_problems import make_problem
from small_work import work_of

TWINS = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1),
    "momentum:0.7": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.7),
    "adamw:0.2": lambda params: torch.optim.AdamW(params, lr=0.1, weight_decay=0.2),
}


@pytest.mark.parametrize("text", TWINS)
def test_steps_are_those_of_pytorch_and_start_anew_after_a_reset(text):
    generator = torch.Generator().manual_seed(3)
    start, gradients = torch.randn(2, 7, generator=generator), torch.randn(5, 2, 7, generator=generator)
    expected = start.clone().requires_grad_()
    twin = TWINS[text]([expected])
    for gradient in gradients:
        expected.grad = gradient
        twin.step()
    params = start.clone()
    optimizer = Optimizer(text, params)
    for _ in range(2):
        params.copy_(start)
        optimizer.reset()
        for gradient in gradients:
            optimizer.step(params, gradient, torch.full((2, 1), 0.1))
        torch.testing.assert_close(params, expected.detach(), rtol=1e-5, atol=1e-6)


def test_plain_steps_are_the_bits_of_the_paper_s_line_9():
    generator = torch.Generator().manual_seed(3)
    params, gradient = torch.randn(2, 100, generator=generator)
    moved = params.clone()
    Optimizer("sgd", moved).step(moved, gradient, 0.3)
    assert torch.equal(moved, params - 0.3 * gradient)


@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
def test_vectorised_steps_equal_the_sequential_ones(optimizer):
    problem = make_problem("mlp")
    config = fedpaq.FedPAQConfig(
        clients_per_round=3, local_steps=4, total_steps=4, batch_size=4, step_size=0.01, optimizer=optimizer
    )
    work = work_of(problem, config)
    found, twin = (each.local_updates(problem, work) for each in (Vectorised(), Sequential()))
    torch.testing.assert_close(found, twin, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("changes", [{"optimizer": "adamw"}, {"precision": "bfloat16"}])
def test_compiled_executors_refuse_what_they_do_not_know_and_auto_takes_another(changes):
    problem = make_problem("mlp")
    config = fedpaq.FedPAQConfig(clients_per_round=3, local_steps=2, total_steps=2, step_size=0.01, **changes)
    for executor in (Dense(), Batched()):
        with pytest.raises(ConfigError, match="choose executor='auto'"):
            executor.local_updates(problem, work_of(problem, config))
    history = fedpaq.train(problem, config)
    assert history.executor in ("captured", "vectorised")
    assert {**history.config, **changes} == history.config


def test_mixed_precision_sees_the_same_draws_and_ends_near_float32():
    problem = make_problem("convnet")
    runs = [
        fedpaq.train(problem, fedpaq.FedPAQConfig(
            clients_per_round=5, local_steps=3, total_steps=12, batch_size=4, step_size=0.1, precision=precision
        ), executor="captured")
        for precision in ("float32", "bfloat16")
    ]  # fmt: skip
    moved = np.linalg.norm(runs[0].params - problem.initial_params)
    assert 0 < np.linalg.norm(runs[0].params - runs[1].params) < 0.05 * moved  # bfloat16 has 8 bits: 0.4 % each
