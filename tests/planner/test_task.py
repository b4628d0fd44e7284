"""Tasks: which loss is meant, expected times, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import fedpaq
from fedpaq.errors import ConfigError
from fedpaq.planner import Task
from fedpaq.problems import Partition, Problem
from fedpaq.quantizers import Identity, LowPrecision
from fedpaq.randomness import Key
from small_plans import COST, PAID, make_task, setting_of, uneven_problem


def test_the_watched_target_makes_up_for_easy_or_hard_samples(problem):
    """Twenty samples differ from all 160; where all are at the target, those twenty are at the watched one."""
    some = Task(problem=problem, target_loss=0.56, cost_model=COST, max_clients=8, watched_samples=20)
    full_loss, start, end = some._descent
    shares = np.linspace(0.0, 1.0, 2001)
    values = np.array([full_loss.value(start + share * (end - start)) for share in shares])
    there = start + shares[np.argmax(values <= 0.56)] * (end - start)
    assert some.watched.evaluate(there).loss == pytest.approx(some.watched_target, abs=2e-3)
    assert abs(some.watched_target - 0.56) > 0.005  # else there would be nothing to make up for
    assert Task(problem=problem, target_loss=0.56, cost_model=COST, max_clients=8).watched_target == 0.56


def unequal_task(target_loss, **changes):
    """One number b is learnt: a client holds one sample at 10, the other thirty around 1.

    Reported, the loss starts at (100 + 30 x 1.01) / 31 = 4.2 and ends at 2.6; averaged over clients, as in
    the theorems, it would start at 50 and end at 20.
    """
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    near = 1.0 + 0.1 * (-1.0) ** np.arange(30)
    problem = Problem(
        model=model,
        loss=nn.functional.mse_loss,
        inputs=torch.ones(31, 1),
        targets=np.append(10.0, near)[:, None].astype(np.float32),
        partition=Partition.from_lists([[0], np.arange(1, 31)]),
    )
    return Task(problem=problem, target_loss=target_loss, cost_model=COST, max_clients=2, **changes)


def test_a_target_is_compared_with_the_loss_that_runs_report():
    unequal_task(3.0).require_reachable()  # below 20, the least mean over clients
    for target in (4.3, 40.0):  # below 50, the first mean over clients
        with pytest.raises(ConfigError, match=r"not below the loss before training, 4\.203"):
            unequal_task(target).require_reachable()
    with pytest.raises(ConfigError, match=r"is below 2\.5\d*, the lowest training loss"):
        unequal_task(1.0).require_reachable()


def test_the_watched_target_belongs_to_the_loss_that_runs_report():
    task = unequal_task(3.0, watched_samples=8)
    numbers = np.linspace(0.0, 1.29, 100_001, dtype=np.float32)  # b on the way to the minimum
    targets = task.problem.targets.numpy().ravel()
    reported = (numbers[:, None] ** 2 - 2 * numbers[:, None] * targets.mean() + np.square(targets).mean()).ravel()
    there = numbers[np.argmax(reported <= 3.0)]
    assert task.problem.evaluate(np.array([there])).loss == pytest.approx(3.0, abs=1e-4)
    # Ten bisections of the descent's path of length 1.3 at most, on a slope of 5 at most.
    assert task.watched_target == pytest.approx(task.watched.evaluate(np.array([there])).loss, abs=0.01)


@pytest.mark.parametrize("quantizer", [Identity(), LowPrecision(2), LowPrecision(2, bucket_size=2)])
def test_the_expected_upload_is_a_real_payload(quantizer):
    task = make_task(batch_size=2)
    rng = np.random.default_rng(1)
    update = rng.normal(size=3).astype(np.float32)
    normal = len(fedpaq.encode(quantizer.quantize(update, key=Key(seed=0))))
    assert abs(task.upload_bytes(quantizer) - normal) <= 2
    assert task.upload_bytes(quantizer) is task.upload_bytes(quantizer)


@pytest.mark.parametrize("clients", [5, 10])
def test_steps_on_all_samples_of_uneven_clients_take_what_a_run_is_charged(clients):
    """400 rounds of a run against the mean over 4000 drawn cohorts, within 5 standard errors of their difference."""
    uneven = uneven_problem([10] * 9 + [910])
    task = make_task(problem=uneven, batch_size=None, cost_model=COST, max_clients=10)
    planned = task.computing_seconds(setting_of(2, clients, 1))
    history = fedpaq.train(uneven, task.config(setting_of(2, clients, 1), 1e-3, 0, rounds=400), cost_model=COST)
    charged = np.diff([record.computation_seconds for record in history.records])
    assert abs(planned - charged.mean()) < 5 * charged.std() * math.sqrt(1 / 400 + 1 / 4000)
    assert task.computing_seconds(setting_of(6, clients, 1)) == pytest.approx(3 * planned)


def test_steps_on_all_samples_of_equal_clients_have_their_exact_mean():
    of_all, of_five = (make_task(problem=uneven_problem([5] * 3), batch_size=size) for size in (None, 5))
    assert of_all.computing_seconds(setting_of(2, 3, 1)) == of_five.computing_seconds(setting_of(2, 3, 1))


def test_the_seconds_of_a_round_by_hand():
    setting, down = setting_of(2, 3, 1), np.array([10, 20, 30])
    computing = 2 * 5 * (0.5 + (1 + 1 / 2 + 1 / 3) / 2)
    assert make_task(batch_size=5).computing_seconds(setting) == pytest.approx(computing)
    assert make_task().sending_seconds(setting, 250, down) == pytest.approx(8 * 250 / 100)
    dear = replace(PAID, downlink_bandwidth=40.0, round_seconds=2.0)
    assert make_task(cost_model=dear).sending_seconds(setting, 250, down) == pytest.approx(20 + 8 * 60 / 40 + 2)
    own = replace(dear, shared_uplink=False, shared_downlink=False)
    assert make_task(cost_model=own).sending_seconds(setting, 250, down) == pytest.approx(20 / 3 + 8 * 30 / 40 + 2)


REFUSED = {
    "no target": ({"target_loss": 0.0}, "target_loss=0.0 is not allowed"),
    "nobody": ({"max_clients": 0}, "max_clients=0 is out of range"),
    "more than there are": ({"max_clients": 4}, r"max_clients=4 exceeds num_clients=3; choose 1\.\.3"),
    "no steps": ({"max_steps": 0}, "max_steps=0 is out of range"),
    "an empty batch": ({"batch_size": 0}, "batch_size=0 is out of range"),
    "bits by formula": (
        {"cost_model": fedpaq.CostModel.from_ratio(1, accounting="elias")},
        "accounting='elias' does not fit; .* choose 'payload'",
    ),
}


@pytest.mark.parametrize(("changes", "why"), REFUSED.values(), ids=REFUSED)
def test_a_task_that_cannot_be_is_refused(changes, why):
    with pytest.raises(ConfigError, match=why):
        make_task(**changes)


def test_a_task_watches_held_samples_only_and_calls_what_is_not_finite_infinite():
    task = make_task(watched_samples=2)
    assert len(task.watched.inputs) == 2 and make_task(watched_samples=5).watched is not task.watched
    params = np.zeros((3, 3), np.float32)
    params[1, 0] = np.nan
    losses = task.losses(params)
    assert losses[1] == math.inf and losses[0] == losses[2] == pytest.approx(task.initial_loss)
    assert task.losses(np.full((1, 3), np.inf, np.float32)).tolist() == [math.inf]
