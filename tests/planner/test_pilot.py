"""Pilots: sweeps that can be paused, and the losses and times of their candidates."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedpaq
from fedpaq.planner import Task
from fedpaq.planner.pilot import Candidate, Pilot
from small_plans import COST, setting_of


def test_a_pilot_is_a_sweep_that_can_be_paused(problem):
    """Round by round it follows the runs of ``sweep``; its seconds are the mean ones of its rounds."""
    task = Task(problem=problem, target_loss=0.01, cost_model=COST, max_clients=8, batch_size=5)
    setting = setting_of(4, 2, 1)
    pilot = Pilot(task, setting, [0.5, 2.0], [3, 4])
    for _ in range(5):
        pilot.play()
    histories = histories_of(problem, setting, [0.5, 2.0], [3, 4], rounds=5)
    for candidate, runs in zip(pilot.candidates, (histories[:2], histories[2:]), strict=True):
        # All 160 samples are watched, so the losses are those of the histories up to summation order.
        for k in range(6):
            assert candidate.losses[k] == pytest.approx(np.mean([run.records[k].loss for run in runs]), rel=1e-6)
            uploaded = max(run.records[k].payload_bytes for run in runs)
            computing = k * COST.expected_computation_seconds(setting.clients_per_round, setting.local_steps * 5)
            uploading = COST.communication_seconds(8 * uploaded, 6)
            assert candidate.seconds[k] == pytest.approx(computing + uploading)
    assert pilot.gradient_steps == 4 * 5 * 2 * 4


def histories_of(problem, setting, step_sizes, seeds, rounds):
    configs = [
        fedpaq.FedPAQConfig(
            clients_per_round=setting.clients_per_round,
            local_steps=setting.local_steps,
            total_steps=rounds * setting.local_steps,
            batch_size=5,
            step_size=step_size,
            seed=seed,
        )
        for step_size in step_sizes
        for seed in seeds
    ]
    return fedpaq.sweep(problem, configs, quantizer=setting.quantizer, cost_model=COST)


def test_a_pilot_announces_when_its_round_will_end(task):
    """H_8 = 2.718: 4 steps on 5 samples take 20 (0.5 + 2.718 / 2) on average; float32 uploads are known."""
    pilot = Pilot(task, setting_of(4, 8, 0), [0.5], [0])
    computing = 20 * (0.5 + sum(1 / i for i in range(1, 9)) / 2)
    each = len(fedpaq.encode(fedpaq.Identity().quantize(np.ones(6, np.float32), key=fedpaq.Key(seed=0))))
    uploading = COST.communication_seconds(8 * 8 * each, 6)
    assert pilot.next_seconds() == pytest.approx(computing + uploading)
    pilot.play()
    assert pilot.candidates[0].seconds[-1] == pytest.approx(computing + uploading)
    assert pilot.next_seconds() == pytest.approx(2 * (computing + uploading))


def test_a_candidate_finishes_when_every_seed_has_reached_the_target(problem, task):
    """With the first times that the histories of separate runs have."""
    setting, seeds = setting_of(1, 2, 1), [3, 4, 5]
    pilot = Pilot(task, setting, [2.0], seeds)
    while pilot.candidates[0].finish is None:
        pilot.play()
    runs = histories_of(problem, setting, [2.0], seeds, rounds=pilot.round)
    first = [next(record for record in run.records if record.loss <= 0.56) for run in runs]
    finish = pilot.candidates[0].finish
    assert finish.rounds == tuple(record.round for record in first)
    assert finish.upload_bytes == tuple(record.payload_bytes for record in first)
    assert pilot.gradient_steps == 2 * sum(finish.rounds)  # a seed that is there stops
    assert finish.seconds <= finish.slowest


def test_a_candidate_that_diverges_drops_out(problem):
    task = Task(problem=problem, target_loss=0.01, cost_model=COST, max_clients=8, batch_size=5)
    pilot = Pilot(task, setting_of(4, 2, 0), [0.5, 1e30], [0])
    for _ in range(3):
        pilot.play()
    assert [candidate.step_size for candidate in pilot.alive] == [0.5]


@settings(max_examples=50, deadline=None)
@given(st.floats(0, 5))
def test_the_loss_at_a_time_is_that_of_the_last_round_ended(seconds):
    candidate = Candidate(setting_of(1, 1, 1), 0.1, losses=[5.0, 4.0, 3.0, 2.0], seconds=[0.0, 1.0, 2.5, 4.0])
    over = [loss for loss, at in zip(candidate.losses, candidate.seconds, strict=True) if at <= seconds]
    assert candidate.loss_at(seconds) == over[-1] and candidate.loss == 2.0
