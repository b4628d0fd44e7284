"""Evaluation: every sample that a client holds counts once, however many passes and params there are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedpaq.errors import ConfigError
from fedpaq.problems import Partition, Problem, iid
from fedpaq.problems.evaluation import ROWS
from problem_parts import FEATURES, LABELS, N, data, make


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


def test_running_statistics_start_afresh_in_every_evaluation():
    model = nn.Sequential(nn.Linear(FEATURES, 5), nn.BatchNorm1d(5), nn.Linear(5, LABELS))
    problem = make(model=model)
    assert problem.evaluate(problem.initial_params) == problem.evaluate(problem.initial_params)
    assert int(model[1].num_batches_tracked) == 0


@pytest.mark.parametrize("shape", [(3,), (1, 59), ()])
def test_params_of_the_wrong_shape_are_refused(shape):
    with pytest.raises(ConfigError, match=r"params.shape=.* does not fit the model; it has dimension=59"):
        make().evaluate(np.zeros(shape, np.float32))


@pytest.mark.parametrize("extra", [1, 2])
def test_batch_statistics_are_never_those_of_a_few_leftover_samples(extra):
    samples = ROWS + extra
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
