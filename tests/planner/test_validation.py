"""Validation: neighbouring step sizes on fresh seeds, single runs, and the interval of one more."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedpaq.planner.pilot import Candidate
from fedpaq.planner.validation import choice_of, rerun, settle, single_runs, validate
from small_plans import COST, choice_with, finish_of, make_task, setting_of


def test_validation_tries_neighbouring_step_sizes_of_distinct_settings(task):
    one, two = setting_of(1, 8, 0), setting_of(4, 8, 0)
    choices, spent = validate(task, [Candidate(one, 0.5), Candidate(one, 1.0), Candidate(two, 0.5)])
    assert {choice.setting for choice in choices} <= {one, two}
    assert {choice.step_size for choice in choices} <= {0.25, 0.3536, 0.5, 0.7071}
    assert choices[0].low <= choices[0].seconds <= choices[0].high
    assert spent > 0


def test_a_rerun_drops_what_does_not_reach_the_target_in_time(task):
    choices, _ = rerun(task, {setting_of(1, 8, 0): [0.5], setting_of(1, 4, 0): [1e-4]}, range(4))
    assert [choice.setting for choice in choices] == [setting_of(1, 8, 0)]
    assert rerun(task, {}, range(4)) == ([], 0)


def test_single_runs_average_to_the_mean_time(task):
    """2000 runs of 3 rounds with drawn computation times, against the mean, within 5 standard errors."""
    setting, seeds = setting_of(4, 8, 0), range(2000)
    seconds = single_runs(task, Candidate(setting, 0.1), finish_of((3,) * 2000, sending=70.0), seeds)
    mean = 3 * COST.expected_computation_seconds(setting.clients_per_round, setting.local_steps * 5) + 70.0
    assert abs(seconds.mean() - mean) < 5 * seconds.std() / math.sqrt(2000)


@pytest.mark.parametrize("batch_size", [None, 2])
def test_single_runs_average_to_the_expected_seconds_for_any_batch(batch_size):
    task, setting, rounds, runs = make_task(batch_size=batch_size), setting_of(2, 3, 1), 4, 400
    seconds = single_runs(task, Candidate(setting, 0.1), finish_of((rounds,) * runs, sending=9.0), range(runs))
    mean = rounds * task.computing_seconds(setting) + 9.0
    assert abs(seconds.mean() - mean) < 5 * seconds.std() / math.sqrt(runs)  # 5 standard errors


def test_the_interval_of_a_choice_is_the_prediction_of_one_more_run():
    task, setting, runs = make_task(batch_size=2), setting_of(1, 3, 1), 40
    rounds = tuple(range(5, 5 + runs))
    candidate = Candidate(setting, 0.25, finish=finish_of(rounds, 50.0, seconds=123.0, slowest=200.0))
    choice = choice_of(task, candidate, range(runs))
    assert choice.seconds == 123.0 and choice.rounds == np.mean(rounds) and choice.upload_bytes == 50.0
    computing = task.computing_seconds(setting)
    assert choice.first_hits == rounds and choice.runs == pytest.approx([computing * k for k in rounds])
    assert choice.standard_error == pytest.approx(computing * np.std(rounds, ddof=1) / math.sqrt(runs))
    logs = np.log(single_runs(task, candidate, candidate.finish, range(runs)))
    assert math.sqrt(choice.low * choice.high) == pytest.approx(math.exp(logs.mean()))
    reach = 1.6848751217112239 * math.sqrt(1 + 1 / runs) * logs.std(ddof=1)  # t_39 at 95 %
    assert math.log(choice.high / choice.low) == pytest.approx(2 * reach)


def test_a_choice_is_json_with_its_quantizer_by_text(task):
    candidate = Candidate(setting_of(4, 2, 3), 0.25, finish=finish_of((3, 4), 55.0, seconds=9.0, slowest=10.0))
    values = choice_of(task, candidate, range(2)).to_dict()
    assert values["setting"] == {
        "local_steps": 4,
        "clients_per_round": 2,
        "levels": 3,
        "quantizer": "low-precision:3",
        "downlink": "dense",
    }
    sent = values["upload_bytes"], values["download_bytes"]
    assert (values["rounds"], values["seconds"], *sent) == (3.5, 9.0, 55.0, 110.0)
    assert values["standard_error"] > 0 and not {"runs", "first_hits"} & set(values)


def test_times_within_two_standard_errors_are_a_tie():
    """16 runs, seed by seed: a difference of 1 with deviation s has the standard error s / 4."""
    fast = choice_with(10.0)
    assert choice_with(11.0, spread=2.1).is_tied_with(fast)
    assert not choice_with(11.0, spread=1.8).is_tied_with(fast)
    assert fast.is_tied_with(fast)
    assert choice_with(10.09).is_tied_with(fast) and not choice_with(10.11).is_tied_with(fast)  # 1 %


def test_a_tie_is_broken_towards_fewer_bytes_then_fewer_clients():
    fast = choice_with(10.0, sent=900.0)
    frugal = choice_with(10.2, sent=300.0, spread=2.0)
    assert settle([fast, frugal]) == [frugal, fast]
    few = choice_with(10.3, sent=301.0, clients=2, spread=2.0)  # the same bytes to two digits
    assert settle([fast, frugal, few])[0] is few
    sure = choice_with(10.2, sent=300.0, spread=0.1)  # surely slower, so not tied
    assert settle([fast, sure])[0] is fast
    slow = choice_with(10.8, sent=300.0, spread=4.0)  # tied, but it may be far slower
    assert settle([fast, slow])[0] is fast


def test_a_refined_validation_tries_the_rates_beside_the_best(task):
    setting = setting_of(4, 8, 4)
    choices, _ = validate(task, [Candidate(setting, 0.5)], refine=True)
    assert {choice.setting.levels for choice in choices} <= {2, 4, 10} and len(choices) > 1
