"""Following: the losses of its twin ``Problem.evaluate``, whatever changes between two calls."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

import fedpaq
from fedpaq.experiments.following import Following, following
from fedpaq.problems.evaluation import evaluate_at_once
from small_problems import make_problem

LOSSES = {"cross-entropy": nn.CrossEntropyLoss(), "logistic": nn.BCEWithLogitsLoss(), "squared": nn.MSELoss()}


def a_problem(rng, loss, widths, samples=150):
    targets = {
        "cross-entropy": rng.integers(0, widths[-1], samples),
        "logistic": rng.integers(0, 2, (samples, widths[-1])).astype(np.float32),
        "squared": rng.standard_normal((samples, widths[-1])).astype(np.float32),
    }[loss]
    torch.manual_seed(0)
    layers = [layer for pair in pairwise(widths) for layer in (nn.Linear(*pair), nn.ReLU())]
    return fedpaq.Problem(
        model=nn.Sequential(*layers[:-1]),
        loss=LOSSES[loss],
        inputs=rng.standard_normal((samples, widths[0])).astype(np.float32),
        targets=targets,
        partition=fedpaq.problems.iid(samples, 5),
        regularization=0.1,
    )


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("widths", [(9, 1), (9, 12), (9, 6, 4), (7, 5, 8, 3)], ids=str)
def test_losses_are_those_of_the_twin(rng, loss, widths):
    if loss == "cross-entropy" and widths[-1] == 1:
        pytest.skip("one class: nothing to learn")
    problem = a_problem(rng, loss, widths)
    followed = following(problem)
    assert isinstance(followed, Following)
    params = np.tile(problem.initial_params, (3, 1))
    for share in (1.0, 0.1, 0.0, 0.1, 0.9, 0.1):  # of the params that change
        changed = rng.random(params.shape) < share
        params = (params + changed * rng.standard_normal(params.shape)).astype(np.float32)
        at_once = evaluate_at_once(problem, problem.dense_network, torch.from_numpy(params))  # as on a GPU
        for row, found, other in zip(params, followed.evaluate_batch(params), at_once, strict=True):
            expected = problem.evaluate(row)
            assert (found.loss, other.loss) == pytest.approx((expected.loss, expected.loss), rel=2e-6)
            assert found.accuracy == other.accuracy == expected.accuracy


def test_large_outputs_lose_no_digits(rng):
    problem = a_problem(rng, "cross-entropy", (9, 6, 4))
    params = (100 * rng.standard_normal((1, problem.dimension))).astype(np.float32)
    (found,) = following(problem).evaluate_batch(params)
    assert found.loss == pytest.approx(problem.evaluate(params[0]).loss, rel=2e-6)


def test_a_run_that_diverged_leaves_nothing_behind(rng):
    problem = a_problem(rng, "cross-entropy", (9, 6, 4))
    followed, params = following(problem), np.tile(problem.initial_params, (2, 1))
    followed.evaluate_batch(params)
    lost = params.copy()
    lost[0] = np.inf
    assert not np.isfinite(followed.evaluate_batch(lost)[0].loss)
    assert followed.evaluate_batch(params)[0].loss == pytest.approx(problem.evaluate(params[0]).loss, rel=2e-6)
    assert len(followed.evaluate_batch(params[:1])) == 1  # fewer runs go on


def test_some_samples_only_and_other_modules(rng):
    problem = a_problem(rng, "cross-entropy", (9, 6, 4))
    thinned = problem.evaluated_on(np.arange(0, 150, 10))
    (found,) = following(thinned).evaluate_batch(problem.initial_params[None])
    assert found.loss == pytest.approx(thinned.evaluate(problem.initial_params).loss, rel=2e-6)
    convolution = make_problem("cnn")
    assert following(convolution) is convolution
