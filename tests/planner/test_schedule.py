"""Schedules: rounds after which the wanted share of runs is at the target, counted on whole runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import fedpaq
from fedpaq.planner.schedule import FIRST_SEED, Schedule, _nearest, make_schedule
from fedpaq.planner.validation import rerun
from small_plans import setting_of


def losses_of(task, choice, rounds, runs):
    """Return the losses (runs, rounds + 1) of separate runs on the seeds of a schedule."""
    seeds = range(FIRST_SEED, FIRST_SEED + runs)
    configs = [task.config(choice.setting, choice.step_size, seed, rounds) for seed in seeds]
    histories = fedpaq.sweep(task.problem, configs, quantizer=choice.setting.quantizer)
    return np.array([[record.loss for record in history.records] for history in histories])


@pytest.mark.parametrize("confidence", [0.6, 0.9])
def test_the_scheduled_share_is_that_of_whole_runs(task, confidence):
    (choice,), _ = rerun(task, {setting_of(1, 2, 1): [0.5]}, range(8))
    made, steps = make_schedule(task, choice, confidence)
    losses = losses_of(task, choice, made.rounds + 1, made.runs)
    shares = (losses <= task.target_loss).mean(axis=0)
    # Summation order may move a loss that is equal to the target to six digits: one run in 200.
    assert made.share == pytest.approx(shares[made.rounds], abs=0.006)
    assert made.share >= confidence - 0.05 and made.is_held
    assert (shares[1 : made.rounds] < confidence).all()
    assert steps >= made.runs * 2 * made.rounds


def test_a_level_that_is_hit_but_not_held_is_called_so(task):
    """With large steps of one client the loss jumps over the target and back."""
    (choice,), _ = rerun(task, {setting_of(1, 1, 1): [1.0]}, range(8))
    made, _ = make_schedule(task, choice, 0.9)
    assert not made.is_held and made.before < 0.9 <= made.share
    there = losses_of(task, choice, made.rounds, made.runs) <= task.target_loss
    assert there.any(axis=1).mean() == pytest.approx(made.share, abs=0.006)
    assert there[:, -1].mean() < 0.5


@pytest.mark.parametrize("target_loss", [0.53, 0.51])
def test_the_schedule_does_not_depend_on_the_samples_watched(task, target_loss):
    """They are easier or harder than all, the more so the lower the target. The second level is never held."""
    task = replace(task, target_loss=target_loss, max_steps=340)
    (choice,), _ = rerun(task, {setting_of(1, 4, 1): [0.3]}, range(8))
    whole, few = (make_schedule(replace(task, watched_samples=watched), choice, 0.9)[0] for watched in (None, 20))
    assert few == whole and whole.is_held == (target_loss == 0.53)


def a_schedule(rounds, share):
    return Schedule(rounds=rounds, share=share, before=0.0, runs=200, seconds=1, upload_bytes=1, download_bytes=1)


def test_a_round_less_is_scheduled_where_that_is_nearer():
    assert _nearest([a_schedule(1, 0.88), a_schedule(2, 0.97)], 0.9).rounds == 1
    assert _nearest([a_schedule(1, 0.84), a_schedule(2, 0.97)], 0.9).rounds == 2  # misses it by too much
    assert _nearest([a_schedule(1, 0.88), a_schedule(2, 0.91)], 0.9).rounds == 2
    assert _nearest([a_schedule(1, 0.97)], 0.9).rounds == 1
