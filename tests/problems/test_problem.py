"""Problem: loss, gradient and accuracy of flat params; the model is never changed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedpaq.errors import ConfigError, DatasetError
from fedpaq.problems import Partition, Problem, iid
from fedpaq.problems.problem import EVALUATION_ROWS
from problem_parts import FEATURES, LABELS, N, data, make, network


def by_hand(problem: Problem, params: np.ndarray, samples: list[int]) -> tuple[float, float]:
    """One sample at a time, through the module itself."""
    model = problem.model
    flat, start = torch.from_numpy(params), 0
    losses, right = [], 0
    with torch.no_grad():
        for value in model.parameters():
            value.copy_(flat[start : start + value.numel()].view(value.shape))
            start += value.numel()
        for sample in samples:
            outputs = model(problem.inputs[sample : sample + 1])
            losses.append(float(problem.loss(outputs, problem.targets[sample : sample + 1])))
            right += int(outputs.argmax()) == int(problem.targets[sample])
    loss = np.mean(losses) + 0.5 * problem.regularization * float(np.sum(params.astype(float) ** 2))
    return loss, right / len(samples)


@pytest.mark.parametrize("held", [list(range(N)), [5, 3, 3, 17, 59, 0]])
def test_evaluate_equals_a_loop_over_the_samples_held(held):
    partition = Partition.from_lists([held[:2], held[2:]])
    problem = make(regularization=0.1, partition=partition)
    params = np.random.default_rng(2).standard_normal(problem.dimension).astype(np.float32)
    loss, accuracy = by_hand(problem, params, sorted(set(held)))
    found = problem.evaluate(params)
    assert found.loss == pytest.approx(loss, rel=1e-5)
    assert found.accuracy == pytest.approx(accuracy)


def test_evaluation_does_not_depend_on_how_samples_are_cut_into_passes():
    inputs, targets = data(9000)  # more than one pass of 8192
    problem = make(inputs=inputs, targets=targets, partition=iid(9000, 3))
    outputs = problem.model(torch.from_numpy(inputs)).detach()
    expected = float(nn.functional.cross_entropy(outputs, torch.from_numpy(targets)))
    assert problem.evaluate(problem.initial_params).loss == pytest.approx(expected, rel=1e-5)


def test_many_params_are_evaluated_like_each_of_them():
    problem = make(regularization=0.1, partition=iid(N, 6, samples_per_client=3))
    rows = np.random.default_rng(3).standard_normal((4, problem.dimension)).astype(np.float32)
    for found, row in zip(problem.evaluate_batch(rows), rows, strict=True):
        alone = problem.evaluate(row)
        assert found.loss == pytest.approx(alone.loss, rel=1e-5)
        assert found.accuracy == alone.accuracy


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


def test_running_statistics_start_afresh_in_every_evaluation():
    model = nn.Sequential(nn.Linear(FEATURES, 5), nn.BatchNorm1d(5), nn.Linear(5, LABELS))
    problem = make(model=model)
    assert problem.evaluate(problem.initial_params) == problem.evaluate(problem.initial_params)
    assert int(model[1].num_batches_tracked) == 0


@pytest.mark.parametrize("name", ["inputs", "targets"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_data_that_is_not_finite_is_refused(name, value):
    arrays = {"inputs": data()[0].copy(), "targets": np.linspace(0, 1, N)[:, None].astype(np.float32)}
    arrays[name][7, 0] = value
    with pytest.raises(DatasetError, match=f"{name} hold NaN or infinity; clean the data first"):
        make(model=nn.Linear(FEATURES, 1), loss=nn.functional.mse_loss, **arrays)


@pytest.mark.parametrize("shape", [(3,), (1, 59), ()])
def test_params_of_the_wrong_shape_are_refused(shape):
    with pytest.raises(ConfigError, match=r"params.shape=.* does not fit the model; it has dimension=59"):
        make().evaluate(np.zeros(shape, np.float32))


@pytest.mark.parametrize("extra", [1, 2])
def test_batch_statistics_are_never_those_of_a_few_leftover_samples(extra):
    samples = EVALUATION_ROWS + extra
    inputs, labels = torch.randn(samples, 3, generator=torch.Generator().manual_seed(0)), torch.arange(samples) % 2
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    problem = Problem(
        model=model, loss=nn.functional.cross_entropy, inputs=inputs, targets=labels, partition=iid(samples, 2)
    )
    with torch.no_grad():
        halves = [
            float(problem.loss(problem.outputs(torch.from_numpy(problem.initial_params), x), y))
            for x, y in zip(inputs.chunk(2), labels.chunk(2), strict=True)
        ]
    assert problem.evaluate(problem.initial_params).loss == pytest.approx(np.mean(halves), rel=1e-4)
