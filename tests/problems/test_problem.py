"""Problem: loss and gradient of flat params; the model is never changed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import fedpaq
from fedpaq.errors import ConfigError, DatasetError
from fedpaq.problems import Problem, iid
from problem_parts import FEATURES, LABELS, N, data, make, network


def test_objective_has_the_gradient_of_the_regularised_loss():
    problem = make(regularization=0.3)
    x, y = problem.batch(np.array([4, 9, 4]))
    params = torch.from_numpy(problem.initial_params.copy()).requires_grad_()
    problem.objective(params, x, y).backward()
    loss = nn.functional.cross_entropy(problem.model(x), y)
    gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(problem.model.parameters()))])
    torch.testing.assert_close(params.grad, gradient + 0.3 * params.detach())


def test_the_model_is_left_alone_and_its_parameters_are_remembered():
    model = network()
    problem = make(model=model)
    before = problem.initial_params.copy()
    problem.evaluate(np.zeros(problem.dimension, np.float32))
    flat = torch.cat([value.detach().reshape(-1) for value in model.parameters()])
    assert np.array_equal(flat.numpy(), before)
    with torch.no_grad():
        model[0].weight.zero_()
    assert np.array_equal(problem.initial_params, before)


def test_frozen_parameters_are_not_part_of_x():
    model = network()
    model[0].weight.requires_grad_(False)
    problem = make(model=model)
    assert problem.dimension == 5 + 5 * LABELS + LABELS
    whole = make(model=network())
    assert problem.evaluate(problem.initial_params).loss == pytest.approx(
        whole.evaluate(whole.initial_params).loss, rel=1e-6
    )


def test_layers_that_share_weights_are_counted_once_and_evaluated_right():
    layer = nn.Linear(FEATURES, FEATURES)
    problem = make(model=nn.Sequential(layer, nn.ReLU(), layer))
    assert problem.dimension == FEATURES * FEATURES + FEATURES
    rows = np.stack([problem.initial_params, problem.initial_params * 2])
    assert problem.evaluate_batch(rows)[1] == problem.evaluate(rows[1])


class LossModule(nn.Module):
    """A user's loss without the attributes of torch's own."""

    def forward(self, outputs, targets):
        return nn.functional.cross_entropy(outputs, targets)


def test_a_loss_may_be_any_module():
    assert make(loss=LossModule()).dense_network == make(loss=nn.CrossEntropyLoss()).dense_network is not None


def test_moving_to_where_it_is_returns_the_problem_itself():
    problem = make()
    assert problem.to("cpu") is problem


def test_making_and_evaluating_draws_nothing_from_torchs_generator():
    model = nn.Sequential(nn.Linear(FEATURES, 5), nn.Dropout(0.5), nn.Linear(5, LABELS))
    inputs, targets = data()
    before = torch.random.get_rng_state()
    problem = Problem(model=model, loss=nn.CrossEntropyLoss(), inputs=inputs, targets=targets, partition=iid(N, 6))
    first, second = problem.evaluate(problem.initial_params), problem.evaluate(problem.initial_params)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert first == second and problem.draws_at_random and model.training


@pytest.mark.parametrize("name", ["inputs", "targets"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_data_that_is_not_finite_is_refused(name, value):
    arrays = {"inputs": data()[0].copy(), "targets": np.linspace(0, 1, N)[:, None].astype(np.float32)}
    arrays[name][7, 0] = value
    with pytest.raises(DatasetError, match=f"{name} hold NaN or infinity; clean the data first"):
        make(model=nn.Linear(FEATURES, 1), loss=nn.functional.mse_loss, **arrays)


class Teacher(nn.Module):
    """A head beside a frozen moving average of it, which every forward pass changes."""

    def __init__(self):
        super().__init__()
        self.head, self.average = nn.Linear(6, 2), nn.Linear(6, 2).requires_grad_(False)

    def forward(self, inputs):
        with torch.no_grad():
            self.average.weight.lerp_(self.head.weight, 0.05)
        return torch.tanh(self.head(inputs)) + self.average(inputs)


def small(**parts):
    inputs = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    given = {
        "model": nn.Linear(6, 2), "loss": nn.functional.cross_entropy, "inputs": inputs,
        "targets": (inputs[:, 0] > 0).long(), "partition": fedpaq.problems.iid(40, 4),
    } | parts  # fmt: skip
    return fedpaq.Problem(**given)


def test_frozen_parameters_that_a_forward_pass_changes_are_put_back(config):
    model = Teacher()
    before = model.average.weight.clone()
    problem = small(model=model)
    assert problem.changing == {"average.weight"} and problem.dense_network is None
    config = replace(config, clients_per_round=2)
    runs = {name: fedpaq.train(problem, config, executor=name) for name in ("sequential", "captured", "sequential")}
    again = fedpaq.train(problem, config, executor="sequential")
    assert np.array_equal(runs["sequential"].params, again.params)
    np.testing.assert_allclose(runs["captured"].params, again.params, atol=1e-6)
    assert torch.equal(model.average.weight, before) and torch.equal(problem._frozen["average.weight"], before)


@pytest.mark.parametrize("name", ["model", "loss", "inputs", "targets", "partition", "regularization"])
def test_the_parts_of_a_problem_are_fixed(name):
    problem = small()
    with pytest.raises(ConfigError, match=f"{name} of a problem is fixed"):
        setattr(problem, name, getattr(problem, name))


def test_class_weights_of_a_loss_move_with_the_problem():
    problem = small(loss=nn.CrossEntropyLoss(weight=torch.ones(2)))
    assert problem.to("meta").loss.weight.device.type == "meta" and problem.loss.weight.device.type == "cpu"


class Proximal(fedpaq.Problem):
    """A problem with a term of its own."""

    def objective(self, params, inputs, targets):
        return super().objective(params, inputs, targets) + 5 * params.square().sum()


def test_a_subclass_keeps_its_mathematics_whatever_trains_it(config):
    plain, config = small(), replace(config, clients_per_round=2)
    problem = Proximal(
        model=plain.model, loss=plain.loss, inputs=plain.inputs, targets=plain.targets, partition=plain.partition
    )
    chosen, twin = (fedpaq.train(problem, config, executor=name) for name in ("auto", "sequential"))
    assert np.array_equal(chosen.params, twin.params) and chosen.executor == "sequential"
    assert np.abs(chosen.params).max() < np.abs(fedpaq.train(plain, config).params).max()
    with pytest.raises(ConfigError, match=r"does not call Proximal\.objective"):
        fedpaq.train(problem, config, executor="dense")
    assert type(problem.evaluated_on(np.arange(3))) is type(problem.to("meta")) is Proximal
