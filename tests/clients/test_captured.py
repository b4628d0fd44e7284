"""Captured: any module, its copies and lanes, the same updates as the sequential twin."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import fedpaq
from fedpaq.clients import Captured, Sequential
from fedpaq.clients.captured import Constants, last_channels, reason_not_copied
from fedpaq.errors import ConfigError
from small_problems import make_problem
from small_work import work_of
from stock_modules import STOCK, stock_problem


@pytest.mark.parametrize("name", STOCK)
def test_stock_modules_train_without_a_warning_and_equal_the_sequential_twin(name):
    problem = stock_problem(name)
    config = fedpaq.FedPAQConfig(clients_per_round=3, local_steps=2, total_steps=4, batch_size=5, step_size=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        history = fedpaq.train(problem, config, quantizer=fedpaq.LowPrecision(levels=64))
    twin = fedpaq.train(problem, config, quantizer=fedpaq.LowPrecision(levels=64), executor="sequential")
    assert np.abs(history.params - twin.params).max() < 1e-5
    assert history.final.loss == pytest.approx(twin.final.loss, abs=1e-5)
    assert problem.evaluate(history.params).loss == history.final.loss  # nothing is drawn in an evaluation


@pytest.mark.parametrize("optimizer", ["momentum:0.8", "adamw:0.1"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_every_optimizer_and_precision_equals_the_sequential_twin(optimizer, precision):
    problem = make_problem("convnet")  # every gradient is far from zero, of which AdamW would keep the sign only
    config = fedpaq.FedPAQConfig(
        clients_per_round=3, local_steps=4, total_steps=4, batch_size=5, step_size=0.01, optimizer=optimizer,
        precision=precision,
    )  # fmt: skip
    work = work_of(problem, config)
    found, twin = (each.local_updates(problem, work) for each in (Captured(channels_last=False), Sequential()))
    torch.testing.assert_close(found, twin, rtol=1e-4, atol=1e-5)


def test_updates_do_not_depend_on_the_lanes_or_on_who_came_before(config):
    problem = make_problem("convnet")
    work = work_of(problem, config)
    executor = Captured(lanes=1)
    alone = executor.local_updates(problem, work)
    assert torch.equal(executor.local_updates(problem, work), alone)
    torch.testing.assert_close(Captured(lanes=3).local_updates(problem, work), alone, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(Captured(channels_last=False).local_updates(problem, work), alone, rtol=1e-5, atol=1e-6)


def test_the_number_of_threads_is_put_back(config):
    problem, threads = make_problem("convnet"), torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        Captured(lanes=2).local_updates(problem, work_of(problem, config))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


def test_frozen_parameters_stay_and_the_module_of_the_user_is_left_alone(config):
    model = copy.deepcopy(make_problem("convnet").model)
    model[0].weight.requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    given = make_problem("convnet")
    problem = fedpaq.Problem(
        model=model, loss=given.loss, inputs=given.inputs, targets=given.targets, partition=given.partition
    )
    work = work_of(problem, config)
    found, twin = (each.local_updates(problem, work) for each in (Captured(), Sequential()))
    assert found.shape == (len(work), given.dimension - before["0.weight"].numel())
    torch.testing.assert_close(found, twin, rtol=1e-5, atol=1e-6)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


class Counting(nn.Module):
    """Outputs depend on a buffer that every call changes, in place or by another tensor."""

    def __init__(self, *, replaced):
        super().__init__()
        self.layer, self.replaced = nn.Linear(4, 2), replaced
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, values):
        if self.replaced:
            self.calls = self.calls + 1
        else:
            self.calls.add_(1)
        return self.layer(values) * self.calls


@pytest.mark.parametrize("replaced", [False, True])
def test_buffers_start_anew_in_every_step(replaced, config):
    problem = fedpaq.Problem(
        model=Counting(replaced=replaced), loss=nn.functional.cross_entropy, inputs=torch.randn(80, 4),
        targets=torch.arange(80) % 2, partition=fedpaq.problems.iid(80, 8),
    )  # fmt: skip
    work = work_of(problem, config)
    found, twin = (each.local_updates(problem, work) for each in (Captured(), Sequential()))
    torch.testing.assert_close(found, twin, rtol=1e-5, atol=1e-6)


def test_buffers_that_nothing_changes_are_not_copied():
    module = nn.BatchNorm1d(3)
    constants = Constants(module)
    before = dict(module._buffers)
    constants.restore()
    assert all(module._buffers[name] is value for name, value in before.items())
    module.num_batches_tracked.add_(1)
    constants.restore()
    assert module.num_batches_tracked == 0


def test_weights_with_channels_innermost_are_the_same_memory():
    flat = torch.arange(24.0)
    weights = last_channels(flat.view(2, 3, 2, 2))
    assert weights.shape == (2, 3, 2, 2) and weights.is_contiguous(memory_format=torch.channels_last)
    weights[1, 2, 1, 1] = -1
    assert flat[-1] == -1 and last_channels(flat) is flat


def test_a_copy_that_is_not_the_module_is_refused(config):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    model[0].register_forward_hook(lambda module, inputs, output: output @ model[0].weight)  # holds on to the original
    problem = fedpaq.Problem(
        model=model, loss=nn.functional.cross_entropy, inputs=torch.randn(80, 4), targets=torch.arange(80) % 2,
        partition=fedpaq.problems.iid(80, 8),
    )  # fmt: skip
    assert reason_not_copied(problem) is not None
    with pytest.raises(ConfigError, match="cannot copy this module"):
        fedpaq.train(problem, config, executor="captured")
    assert fedpaq.train(problem, config).executor in ("sequential", "vectorised")
