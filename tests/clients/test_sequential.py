"""Sequential: plain autograd, with dropout drawn from our own streams."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

import fedpaq
from fedpaq.clients import choose_executor


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
    assert choose_executor("auto", problem).name == "captured"
    state = torch.random.get_rng_state()
    first = fedpaq.train(problem, config, executor="sequential")
    second = fedpaq.train(problem, config, executor="sequential")
    assert np.array_equal(first.params, second.params)
    captured = fedpaq.train(problem, config, executor="captured")
    np.testing.assert_allclose(captured.params, first.params, atol=1e-6)  # the same masks
    assert torch.equal(torch.random.get_rng_state(), state)
