"""DenseNetwork: recognised exactly where plain matrix products give the outputs of the model."""

from __future__ import annotations

import copy
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations, prune

import fedpaq
from fedpaq.problems import Problem, iid
from fedpaq.problems.dense_network import CROSS_ENTROPY, LOGISTIC, SQUARED, DenseNetwork, recognise

QUICK = settings(max_examples=30, deadline=None)
ROWS = 12
INPUTS = torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(5))
LABELS = torch.arange(ROWS) % 3
ONE_HOT = functional.one_hot(LABELS, 3).float()


def layers(*between):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return [nn.Linear(4, 5), *(between or (nn.ReLU(),)), nn.Linear(5, 3)]


def outputs_by_hand(widths, params, inputs):
    """Every unit of every layer as a sum over Python floats."""
    values, start = [[float(x) for x in row] for row in inputs], 0
    for depth, (before, after) in enumerate(itertools.pairwise(widths)):
        weights = params[start : start + before * after]
        biases = params[start + before * after : start + (before + 1) * after]
        start += (before + 1) * after
        values = [
            [
                sum(float(weights[unit * before + i]) * row[i] for i in range(before)) + float(biases[unit])
                for unit in range(after)
            ]
            for row in values
        ]
        if depth < len(widths) - 2:
            values = [[max(x, 0.0) for x in row] for row in values]
    assert start == len(params)
    return np.array(values)


@QUICK
@given(
    st.lists(st.integers(1, 5), min_size=2, max_size=4), st.integers(1, 3), st.integers(1, 4), st.integers(0, 2**32 - 1)
)
def test_outputs_of_many_params_are_those_of_sums_over_units(widths, runs, rows, seed):
    generator = np.random.default_rng(seed)
    dimension = sum((a + 1) * b for a, b in itertools.pairwise(widths))
    params = generator.normal(size=(runs, dimension)).astype(np.float32)
    inputs = generator.normal(size=(rows, widths[0])).astype(np.float32)
    network = DenseNetwork(tuple(widths), SQUARED)
    found = network.outputs(torch.from_numpy(params), torch.from_numpy(inputs)).numpy()
    assert found.shape == (runs, rows, widths[-1])
    for row, expected in zip(found, params, strict=True):
        np.testing.assert_allclose(row, outputs_by_hand(widths, expected, inputs), rtol=1e-4, atol=1e-4)


def test_outputs_leave_params_and_inputs_as_they_were():
    network = DenseNetwork((4, 5, 3), CROSS_ENTROPY)
    params = torch.randn(2, 43, generator=torch.Generator().manual_seed(2))
    before = params.clone(), INPUTS.clone()
    network.outputs(params, INPUTS)
    assert torch.equal(params, before[0]) and torch.equal(INPUTS, before[1])


def test_layers_are_views_in_the_order_of_the_flat_vector():
    network = DenseNetwork((2, 3, 1), SQUARED)
    params = torch.arange(13.0)[None].repeat(2, 1)
    (first, bias), (last, end) = network.layers(params)
    assert first[0].tolist() == [[0, 1], [2, 3], [4, 5]] and bias[1].tolist() == [6, 7, 8]
    assert last[1].tolist() == [[9, 10, 11]] and end[0].tolist() == [12]
    first[0, 0, 0] = -1
    assert params[0, 0] == -1 and params[1, 0] == 0


RECOGNISED = {
    "one layer": (nn.Linear(4, 3), functional.cross_entropy, LABELS, (4, 3), CROSS_ENTROPY),
    "one layer in a Sequential": (nn.Sequential(nn.Linear(4, 3)), nn.CrossEntropyLoss(), LABELS, (4, 3), CROSS_ENTROPY),
    "two layers": (nn.Sequential(*layers()), functional.mse_loss, ONE_HOT, (4, 5, 3), SQUARED),
    "in place": (nn.Sequential(*layers(nn.ReLU(inplace=True))), nn.MSELoss(), ONE_HOT, (4, 5, 3), SQUARED),
    "many logits": (nn.Linear(4, 3), functional.binary_cross_entropy_with_logits, ONE_HOT, (4, 3), LOGISTIC),
    "logits by a module": (nn.Linear(4, 3), nn.BCEWithLogitsLoss(), ONE_HOT, (4, 3), LOGISTIC),
}


@pytest.mark.parametrize(("model", "loss", "targets", "widths", "kind"), RECOGNISED.values(), ids=RECOGNISED)
def test_plain_networks_are_recognised(model, loss, targets, widths, kind):
    assert recognise(model, loss, INPUTS, targets) == DenseNetwork(widths, kind)


def hooked(where):
    parts = layers()
    model = nn.Sequential(*parts)
    target = {"model": model, "first": parts[0], "relu": parts[1], "last": parts[2]}[where]
    target.register_forward_hook(lambda module, arguments, output: output * 3)
    return model


def pre_hooked():
    model = nn.Sequential(*layers())
    model[0].register_forward_pre_hook(lambda module, arguments: (arguments[0] + 1,))
    return model


def pruned():
    model = nn.Sequential(*layers())
    prune.l1_unstructured(model[2], "weight", amount=4)
    model(INPUTS)  # its weight is now a tensor that requires grad, made from a mask
    return model


class LeakyAfterAll(nn.ReLU):
    def forward(self, input):
        return super().forward(input) + 1e-2 * input


OTHERS = {
    "no bias": nn.Linear(4, 3, bias=False),
    "another activation": nn.Sequential(*layers(nn.Tanh())),
    "a subclass of ReLU that does something else": nn.Sequential(*layers(LeakyAfterAll())),
    "a subclass of Linear": type("Mine", (nn.Linear,), {})(4, 3),
    "two activations": nn.Sequential(*layers(nn.ReLU(), nn.ReLU())),
    "no activation": nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3)),
    "an activation at the end": nn.Sequential(nn.Linear(4, 3), nn.ReLU()),
    "an activation first": nn.Sequential(nn.ReLU(), nn.Linear(4, 3)),
    "an empty Sequential": nn.Sequential(),
    "frozen": nn.Linear(4, 3).requires_grad_(False),
    "double precision": nn.Linear(4, 3, dtype=torch.float64),
    "parametrised": parametrizations.weight_norm(nn.Linear(4, 3)),
    "pruned": pruned(),
    "inputs changed by a hook": pre_hooked(),
    **{f"outputs of {where} changed by a hook": hooked(where) for where in ("model", "first", "relu", "last")},
}


@pytest.mark.parametrize("model", OTHERS.values(), ids=OTHERS)
def test_models_whose_outputs_could_be_others_are_not_recognised(model):
    assert recognise(model, functional.cross_entropy, INPUTS, LABELS) is None


LOSSES = {
    "a sum": nn.CrossEntropyLoss(reduction="sum"),
    "smoothed labels": nn.CrossEntropyLoss(label_smoothing=0.1),
    "weighted labels": nn.CrossEntropyLoss(weight=torch.ones(3)),
    "an ignored label": nn.CrossEntropyLoss(ignore_index=1),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_losses_with_settings_are_not_recognised(loss):
    assert recognise(nn.Linear(4, 3), loss, INPUTS, LABELS) is None


@pytest.mark.parametrize(
    "loss", [nn.BCEWithLogitsLoss(pos_weight=torch.ones(3)), nn.BCEWithLogitsLoss(weight=torch.ones(3)), nn.L1Loss()]
)
def test_losses_of_numbers_with_settings_are_not_recognised(loss):
    assert recognise(nn.Linear(4, 3), loss, INPUTS, ONE_HOT) is None


@pytest.mark.parametrize(
    "targets",
    [ONE_HOT, LABELS.int(), LABELS[:, None], LABELS.float()],
    ids=["probabilities", "int32", "a column", "floats"],
)
def test_targets_of_another_form_are_not_recognised(targets):
    assert recognise(nn.Linear(4, 3), functional.cross_entropy, INPUTS, targets) is None


def test_targets_that_broadcast_are_not_recognised():
    assert recognise(nn.Linear(4, 3), functional.mse_loss, INPUTS, ONE_HOT[:, :1]) is None
    assert recognise(nn.Linear(4, 3), functional.mse_loss, INPUTS, ONE_HOT.double()) is None


def test_inputs_of_another_form_are_not_recognised():
    for inputs in (INPUTS[None], INPUTS.double(), INPUTS.long()):
        assert recognise(nn.Linear(4, 3), functional.cross_entropy, inputs, LABELS) is None


def problem_of(model):
    return Problem(
        model=model, loss=functional.cross_entropy, inputs=INPUTS, targets=LABELS, partition=iid(ROWS, 3, seed=2)
    )


@pytest.mark.parametrize("make", [pre_hooked, pruned, lambda: hooked("last")], ids=["pre-hook", "pruned", "hook"])
def test_a_model_with_hooks_trains_like_the_loop_of_autograd(make):
    config = fedpaq.FedPAQConfig(clients_per_round=3, local_steps=2, total_steps=4, batch_size=2, step_size=0.1)
    model = make()
    problem = problem_of(model)
    found = fedpaq.train(problem, config, executor="auto").params
    expected = fedpaq.train(problem, config, executor="sequential").params
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    many = problem.evaluate_batch(np.stack([found, problem.initial_params]))
    for evaluation, params in zip(many, (found, problem.initial_params), strict=True):
        assert evaluation.loss == pytest.approx(problem.evaluate(params).loss, rel=1e-6)


def test_two_layers_of_one_weight_are_not_recognised():
    first = nn.Linear(4, 4)
    shared = nn.Sequential(first, nn.ReLU(), first, nn.ReLU(), nn.Linear(4, 3))
    assert recognise(shared, functional.cross_entropy, INPUTS, LABELS) is None
    tied = nn.Sequential(first, nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    tied[2].bias = first.bias
    assert recognise(tied, functional.cross_entropy, INPUTS, LABELS) is None
    untied = copy.deepcopy(shared)
    untied[2] = nn.Linear(4, 4)
    assert recognise(untied, functional.cross_entropy, INPUTS, LABELS) is not None


def test_evaluating_on_some_samples_survives_a_move_to_another_device():
    problem = problem_of(nn.Linear(4, 3))
    some = np.array([1, 4, 6])
    moved = problem.evaluated_on(some).to("meta")
    assert moved.inputs.device.type == "meta"
    assert [tuple(x.shape) for x, _ in moved._held()] == [(3, 4)]
    assert [tuple(x.shape) for x, _ in problem.to("meta")._held()] == [(ROWS, 4)]
    part = Problem(
        model=nn.Linear(4, 3),
        loss=functional.cross_entropy,
        inputs=INPUTS,
        targets=LABELS,
        partition=fedpaq.problems.Partition.from_lists([[0, 5], [7]]),
    )
    assert [tuple(x.shape) for x, _ in part.to("meta")._held()] == [(3, 4)]


def test_evaluating_on_some_samples_is_the_mean_over_them():
    problem = problem_of(nn.Linear(4, 3))
    some = np.array([1, 4, 6])
    scout = problem.evaluated_on(some)
    flat = torch.from_numpy(problem.initial_params)
    outputs = problem.outputs(flat, INPUTS[some])
    assert scout.evaluate(flat).loss == pytest.approx(float(functional.cross_entropy(outputs, LABELS[some])))
    assert scout.evaluate(flat).accuracy == pytest.approx(float((outputs.argmax(1) == LABELS[some]).float().mean()))
    assert problem.evaluate(flat).loss != scout.evaluate(flat).loss
    assert scout.partition is problem.partition and scout.dimension == problem.dimension
