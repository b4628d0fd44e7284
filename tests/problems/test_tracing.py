"""Tracing: dense networks however they are written, and nothing that only looks like one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import fedpaq
from fedpaq.clients import Batched, Dense, Sequential, local_work
from fedpaq.problems import Problem, iid
from fedpaq.problems.dense_network import CROSS_ENTROPY, LOGISTIC, SQUARED, DenseNetwork

ROWS = 24
GENERATOR = torch.Generator().manual_seed(5)
FLAT, IMAGES = torch.randn(ROWS, 12, generator=GENERATOR), torch.randn(ROWS, 3, 2, 2, generator=GENERATOR)
LABELS, BITS = torch.arange(ROWS) % 4, torch.arange(ROWS) % 2


class Two(nn.Module):
    """Two layers as most people write them."""

    def __init__(self, outputs=4, *, flatten=None, end=lambda values: values):
        super().__init__()
        self.fc1, self.fc2, self.flatten, self.end = nn.Linear(12, 5), nn.Linear(5, outputs), flatten, end

    def forward(self, values):
        values = values if self.flatten is None else self.flatten(values)
        return self.end(self.fc2(functional.relu(self.fc1(values))))


class Logistic(nn.Module):
    """One logit for each sample."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(12, 1)

    def forward(self, values):
        return self.layer(values).squeeze(1)


CRITERION = nn.CrossEntropyLoss()


def criterion(outputs, targets):
    return CRITERION(outputs, targets)


def logistic_loss(outputs, targets):
    return functional.binary_cross_entropy_with_logits(outputs, targets.float())


WRITTEN = {
    "a subclass": (Two, FLAT, LABELS, functional.cross_entropy, (12, 5, 4), CROSS_ENTROPY),
    "view": (lambda: Two(flatten=lambda v: v.view(v.size(0), -1)), IMAGES, LABELS, functional.cross_entropy, (12, 5, 4),
             CROSS_ENTROPY),
    "reshape by shape": (lambda: Two(flatten=lambda v: v.reshape(v.shape[0], 12)), IMAGES, LABELS,
                         functional.cross_entropy, (12, 5, 4), CROSS_ENTROPY),
    "a leading Flatten": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 4)), IMAGES, LABELS,
                          functional.cross_entropy, (12, 4), CROSS_ENTROPY),
    "nested": (lambda: nn.Sequential(nn.Sequential(nn.Linear(12, 5), nn.ReLU()), nn.Linear(5, 4)), FLAT, LABELS,
               nn.CrossEntropyLoss(), (12, 5, 4), CROSS_ENTROPY),
    "a loss in a lambda": (lambda: nn.Linear(12, 4), FLAT, LABELS, lambda o, t: functional.cross_entropy(o, t), (12, 4),
                           CROSS_ENTROPY),
    "a loss module in a function": (Two, FLAT, LABELS, criterion, (12, 5, 4), CROSS_ENTROPY),
    "a subclass of a loss": (Two, FLAT, LABELS, type("Mine", (nn.CrossEntropyLoss,), {})(), (12, 5, 4), CROSS_ENTROPY),
    "integer labels of a logit": (lambda: nn.Linear(12, 1), FLAT, BITS[:, None], logistic_loss, (12, 1), LOGISTIC),
    "a squeezed logit": (Logistic, FLAT, BITS.float(), functional.binary_cross_entropy_with_logits, (12, 1), LOGISTIC),
    "squeezed in the loss": (lambda: nn.Linear(12, 1), FLAT, BITS.float(),
                             lambda o, t: functional.mse_loss(o.squeeze(1), t), (12, 1), SQUARED),
}  # fmt: skip


def problem_of(model, inputs, targets, loss):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return Problem(model=model(), loss=loss, inputs=inputs, targets=targets, partition=iid(ROWS, 4))


@pytest.mark.parametrize(("model", "inputs", "targets", "loss", "widths", "kind"), WRITTEN.values(), ids=WRITTEN)
def test_dense_networks_are_recognised_however_they_are_written(model, inputs, targets, loss, widths, kind):
    state = torch.random.get_rng_state()
    problem = problem_of(model, inputs, targets, loss)
    assert problem.dense_network == DenseNetwork(widths, kind, squeezed=model is Logistic)
    assert torch.equal(torch.random.get_rng_state(), state)
    config = fedpaq.FedPAQConfig(clients_per_round=4, local_steps=3, total_steps=3, batch_size=5, step_size=0.2)
    (work,) = local_work(problem, [config], 0, problem.initial_params[None], np.arange(4)[None])
    twin = Sequential().local_updates(problem, work)
    for executor in (Dense(), Batched()):
        found = torch.as_tensor(executor.local_updates(problem, work))
        torch.testing.assert_close(found, twin, rtol=1e-4, atol=1e-6)
    many = problem.evaluate_batch(np.stack([problem.initial_params, problem.initial_params / 2]))
    for evaluation, scale in zip(many, (1.0, 0.5), strict=True):
        assert evaluation.loss == pytest.approx(problem.evaluate(problem.initial_params * scale).loss, rel=1e-5)
        assert evaluation.accuracy == problem.evaluate(problem.initial_params * scale).accuracy


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(12, 4)

    def forward(self, values):
        return self.layer(values) if values.sum() < 1e6 else self.layer(2 * values)


class Swapped(Two):
    """x holds the last layer first."""

    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(12, 12), nn.Linear(12, 12)

    def forward(self, values):
        return self.fc1(functional.relu(self.fc2(values)))


class Skipping(Two):
    def forward(self, values):
        return self.fc2(functional.relu(self.fc1(values))) + values[:, :4]


FACTOR = [1.0]
PLAIN = functional.cross_entropy
LOOKALIKES = {
    "another activation": (lambda: Two(end=torch.sigmoid), LABELS, PLAIN),
    "six at most": (lambda: nn.Sequential(nn.Linear(12, 5), nn.ReLU6(), nn.Linear(5, 4)), LABELS, PLAIN),
    "outputs that are activated": (lambda: Two(end=torch.relu), LABELS, PLAIN),
    "a way around": (Skipping, LABELS, PLAIN),
    "a branch on the data": (Branching, LABELS, PLAIN),
    "layers in another order": (Swapped, torch.arange(ROWS) % 12, PLAIN),
    "dropout": (lambda: nn.Sequential(nn.Linear(12, 5), nn.Dropout(0.1), nn.ReLU(), nn.Linear(5, 4)), LABELS, PLAIN),
    "weights of classes": (Two, LABELS, lambda o, t: PLAIN(o, t, weight=torch.ones(4))),
    "an ignored label": (Two, LABELS, lambda o, t: PLAIN(o, t, ignore_index=3)),
    "smoothing": (Two, LABELS, lambda o, t: PLAIN(o, t, label_smoothing=0.01)),
    "a factor that may change": (Two, LABELS, lambda o, t: FACTOR[0] * PLAIN(o, t)),
    "a penalty": (Two, LABELS, lambda o, t: PLAIN(o, t) + 1e-4 * o.square().mean()),
    "a temperature": (Two, LABELS, lambda o, t: PLAIN(o / 1.001, t)),
    "labels turned round": (Two, LABELS, lambda o, t: PLAIN(o, 3 - t)),
    "the batch turned round": (Two, LABELS, lambda o, t: PLAIN(o.flip(0), t)),
    "every second sample": (Two, LABELS, lambda o, t: PLAIN(o[::2], t[::2])),
}


@pytest.mark.parametrize(("model", "targets", "loss"), LOOKALIKES.values(), ids=LOOKALIKES)
def test_what_only_looks_like_a_dense_network_is_not_taken_for_one(model, targets, loss):
    assert problem_of(model, FLAT, targets, loss).dense_network is None


def test_a_problem_without_a_dense_network_has_no_data_for_one():
    problem = problem_of(Branching, FLAT, LABELS, PLAIN)
    with pytest.raises(fedpaq.ConfigError, match="not a dense ReLU network"):
        problem.dense_data  # noqa: B018
