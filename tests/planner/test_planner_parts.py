"""The planner's parts alone: spaces, expected times, single runs, races of scripted pilots and least rounds."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedpaq
from fedpaq.errors import ConfigError
from fedpaq.planner import Choice, Plan, RoundSetting, SearchSpace, Task
from fedpaq.planner.closed_form import MOST_ROUNDS, TheoryInputs, _least, plan_from_theory
from fedpaq.planner.expected_time import expected_computation, expected_seconds
from fedpaq.planner.pilot import Candidate, Finish
from fedpaq.planner.plot import pareto_front
from fedpaq.planner.race import race, rank
from fedpaq.planner.search_space import default_cohorts
from fedpaq.planner.validation import choice_of, single_runs, tidy
from fedpaq.problems import Partition, Problem, synthetic_logistic
from fedpaq.quantizers import Identity, LowPrecision
from fedpaq.theory import Assumptions

QUICK = settings(max_examples=50, deadline=None)
COST = fedpaq.CostModel(bandwidth=100.0, shift=0.5, scale=2.0)


def uneven_problem():
    """Three clients with 1, 1 and 3 samples: 5/3 on average, which no integer is."""
    whole = synthetic_logistic(num_clients=5, dimension=3, regularization=0.1)
    return Problem(
        model=whole.model,
        loss=whole.loss,
        inputs=whole.inputs,
        targets=whole.targets,
        partition=Partition.from_lists([[0], [1], [2, 3, 4]]),
        regularization=0.1,
    )


def make_task(**changes):
    values = {"problem": uneven_problem(), "target_loss": 0.5, "cost_model": COST, "max_clients": 3}
    return Task(**{**values, **changes})


def test_shapes_are_every_combination_once():
    space = SearchSpace((1, 5), (2, 4, 8), (1, None), (0.1,))
    all_settings = space.settings()
    assert len(all_settings) == len(set(all_settings)) == 12
    assert {(s.local_steps, s.clients_per_round, s.levels) for s in all_settings} == {
        (tau, r, s) for tau in (1, 5) for r in (2, 4, 8) for s in (1, 0)
    }
    assert all_settings == space.settings()


def test_a_shape_says_what_it_is_and_brings_its_quantizer():
    assert (
        str(RoundSetting(5, 10, 0)) == "tau=5, r=10, no quantizer"
        and RoundSetting(5, 10, 0).quantizer == Identity()
    )
    assert str(RoundSetting(1, 2, 3)) == "tau=1, r=2, s=3" and RoundSetting(1, 2, 3).quantizer == LowPrecision(
        3
    )
    assert sorted([RoundSetting(2, 1, 1), RoundSetting(1, 9, 9)])[0] == RoundSetting(1, 9, 9)


@QUICK
@given(st.integers(1, 10**6))
def test_default_cohorts_ascend_from_one_to_all(max_clients):
    cohorts = default_cohorts(max_clients)
    assert cohorts == sorted(set(cohorts)) and cohorts[0] >= 1 and cohorts[-1] == max_clients
    for share, cohort in zip((0.1, 0.2, 0.5, 1.0), cohorts, strict=False):
        assert len(cohorts) < 4 or abs(cohort - share * max_clients) <= 0.5


BAD_SPACES = {
    "nothing": (((), (1,), (1,), (0.1,)), r"local_steps=\[\] must hold at least one value"),
    "twice": (((1, 1), (1,), (1,), (0.1,)), r"local_steps=\[1, 1\] must hold .* none twice"),
    "no clients": (((1,), (0,), (1,), (0.1,)), "clients_per_round=0 is out of range; choose an integer >= 1"),
    "half a step": (((0.5,), (1,), (1,), (0.1,)), "local_steps=0.5 is not an integer"),
    "no step size": (((1,), (1,), (1,), (0.0,)), "step_sizes=0.0 is not allowed; choose a finite number > 0"),
    "no level": (((1,), (1,), (0,), (0.1,)), "levels=0"),
}


@pytest.mark.parametrize(("choices", "why"), BAD_SPACES.values(), ids=BAD_SPACES)
def test_a_space_without_choices_is_refused_by_name(choices, why):
    with pytest.raises(ConfigError, match=why):
        SearchSpace(*choices)


@QUICK
@given(st.integers(1, 20), st.integers(1, 40), st.integers(1, 50))
def test_expected_computation_grows_with_everything_and_scales_with_the_steps(tau, r, batch):
    seconds = expected_computation(COST, RoundSetting(tau, r, 1), batch)
    assert seconds == pytest.approx(tau * batch * (0.5 + sum(1 / i for i in range(1, r + 1)) / 2))
    assert expected_computation(COST, RoundSetting(2 * tau, r, 0), batch) == pytest.approx(2 * seconds)
    assert expected_computation(COST, RoundSetting(tau, r + 1, 1), batch) > seconds


def test_expected_seconds_by_hand():
    setting = RoundSetting(2, 3, 1)
    computing = 4 * 2 * 5 * (0.5 + (1 + 1 / 2 + 1 / 3) / 2)
    assert expected_seconds(make_task(batch_size=5), setting, 4, 250) == pytest.approx(
        computing + 8 * 250 / 100
    )
    full = expected_seconds(make_task(batch_size=None), setting, 4, 250)
    assert full == pytest.approx(computing * (5 / 3) / 5 + 20)


@pytest.mark.parametrize("batch_size", [None, 2])
def test_single_runs_average_to_the_expected_seconds_for_any_batch(batch_size):
    task, setting, rounds, runs = make_task(batch_size=batch_size), RoundSetting(2, 3, 1), 4, 400
    seconds = single_runs(task, setting, Finish((rounds,) * runs, (100.0,) * runs, 0.0, 0.0), range(runs))
    mean = expected_seconds(task, setting, rounds, 100.0)
    assert abs(seconds.mean() - mean) < 5 * seconds.std() / math.sqrt(runs)  # 5 standard errors


def test_the_interval_of_a_choice_is_the_prediction_of_one_more_run():
    task, setting, runs = make_task(batch_size=2), RoundSetting(1, 3, 1), 40
    rounds = tuple(range(5, 5 + runs))
    candidate = Candidate(setting, 0.25, finish=Finish(rounds, (50.0,) * runs, seconds=123.0, slowest=200.0))
    choice = choice_of(task, candidate, range(runs))
    assert choice.seconds == 123.0 and choice.rounds == np.mean(rounds) and choice.upload_bytes == 50.0
    logs = np.log(single_runs(task, setting, candidate.finish, range(runs)))
    assert math.sqrt(choice.low * choice.high) == pytest.approx(math.exp(logs.mean()))
    reach = 1.6848751217112239 * math.sqrt(1 + 1 / runs) * logs.std(ddof=1)  # t_39 at 95 %
    assert math.log(choice.high / choice.low) == pytest.approx(2 * reach)


@QUICK
@given(st.floats(1e-12, 1e12))
def test_tidying_keeps_four_digits_and_happens_once(step_size):
    assert tidy(step_size) == pytest.approx(step_size, rel=5e-4) and tidy(tidy(step_size)) == tidy(step_size)
    assert len(Decimal(repr(tidy(step_size))).normalize().as_tuple().digits) <= 4


class Scripted:
    """A pilot whose candidates follow written losses, a second a round; one that gets to 0 has finished."""

    def __init__(self, setting, *scripts, pace=1.0):
        self.setting, self.scripts, self.pace, self.plays = setting, scripts, pace, 0
        self.candidates = [
            Candidate(setting, 0.1 * (1 + row), [script[0]], [0.0]) for row, script in enumerate(scripts)
        ]

    @property
    def alive(self):
        return [candidate for candidate in self.candidates if candidate.alive]

    def next_seconds(self):
        return self.pace * (self.plays + 1)

    def play(self):
        self.plays += 1
        for candidate, script in zip(self.candidates, self.scripts, strict=True):
            if candidate.alive:
                candidate.losses.append(script[min(self.plays, len(script) - 1)])
                candidate.seconds.append(self.pace * self.plays)
                if candidate.loss == 0:
                    candidate.finish = Finish(
                        (self.plays,), (1.0,), candidate.seconds[-1], candidate.seconds[-1]
                    )


def test_a_race_returns_the_finished_by_their_slowest_seed():
    slow = Scripted(RoundSetting(1, 1, 1), [3, 2, 1, 0], [3, 2, 0])
    fast = Scripted(RoundSetting(1, 2, 1), [3, 0], pace=1.25)
    told = []
    finished = race([slow, fast], max_steps=100, progress=told.append)
    assert [(candidate.setting, candidate.step_size) for candidate in finished] == [
        (fast.setting, 0.1),
        (slow.setting, 0.2),
        (slow.setting, 0.1),
    ]
    assert told == sorted(told) and all(not candidate.alive for candidate in finished)


def test_a_race_gives_a_pilot_up_at_the_most_steps():
    never = Scripted(RoundSetting(3, 1, 1), [2, 1])
    assert race([never], max_steps=10) == [] and never.plays == 4  # 9 steps are below 10, 12 are not


def test_a_race_never_plays_past_its_time():
    never = Scripted(RoundSetting(1, 1, 1), [2, 1], pace=1.5)
    assert race([never], max_steps=1000, max_seconds=7.4) == [] and never.plays == 4


def test_ranking_is_by_the_loss_at_that_time_and_not_the_latest():
    pilots = [Scripted(RoundSetting(1, r, 1), [9, r, 100 - r]) for r in range(1, 31)]
    for pilot in pilots:
        pilot.play()
        pilot.play()
    rank(pilots, seconds=1.5)  # after the first round: r is the loss
    assert [pilot.setting.clients_per_round for pilot in pilots if pilot.alive] == list(range(1, 16))


@QUICK
@given(st.floats(0, 5))
def test_the_loss_at_a_time_is_that_of_the_last_round_over(seconds):
    candidate = Candidate(RoundSetting(1, 1, 1), 0.1, losses=[5.0, 4.0, 3.0, 2.0], seconds=[0.0, 1.0, 2.5, 4.0])
    over = [loss for loss, at in zip(candidate.losses, candidate.seconds, strict=True) if at <= seconds]
    assert candidate.loss_at(seconds) == over[-1] and candidate.loss == 2.0


@QUICK
@given(st.integers(1, 10**15))
def test_the_least_round_is_found_wherever_it_is(threshold):
    asked = []
    assert _least(lambda n: asked.append(n) or n >= threshold) == threshold
    assert len(asked) <= 2 * threshold.bit_length() + 2


def test_a_target_that_no_round_reaches_is_told():
    with pytest.raises(ConfigError, match=f"within {MOST_ROUNDS} rounds; aim higher"):
        _least(lambda n: False)


def test_guarantees_are_sorted_and_cost_their_rounds():
    known = TheoryInputs(
        assumptions=Assumptions(smoothness=2.0, gradient_variance=1.0, strong_convexity=0.5),
        start=4.0,
        dimension=50,
        num_clients=20,
    )
    all_settings = SearchSpace((1, 4), (5, 20), (1, None), (1.0,)).settings()
    found = plan_from_theory(known, all_settings, target=0.1, cost_model=COST, batch_size=5)
    assert {guarantee.setting for guarantee in found} == set(all_settings)
    assert [g.seconds for g in found] == sorted(g.seconds for g in found)
    for guarantee in found:
        bits = guarantee.setting.clients_per_round * fedpaq.codec.message_bits(
            50, guarantee.setting.levels or None, accounting="elias"
        )
        each = expected_computation(COST, guarantee.setting, 5) + bits / 100.0
        assert guarantee.seconds == pytest.approx(guarantee.rounds * each)
    slower = plan_from_theory(known, all_settings, target=0.01, cost_model=COST, batch_size=5)
    rounds = {guarantee.setting: guarantee.rounds for guarantee in found}
    assert all(guarantee.rounds > rounds[guarantee.setting] for guarantee in slower)


def test_a_plan_is_the_config_it_recommends_and_json():
    choice = Choice(RoundSetting(5, 2, 3), 0.25, rounds=7.2, seconds=9.0, low=5.0, high=12.0, upload_bytes=80.0)
    found = Plan(
        task=make_task(batch_size=4),
        pick=choice,
        runners_up=[choice],
        fedavg=None,
        qsgd=choice,
        finished=[],
        gradient_steps=11,
    )
    config = found.config(seed=6)
    assert (config.num_rounds, config.local_steps, config.clients_per_round) == (8, 5, 2)  # 7.2 rounded up
    assert (config.batch_size, config.step_size, config.seed) == (4, 0.25, 6)
    values = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert values["fedavg"] is None and values["pick"] == values["qsgd"] == json.loads(
        json.dumps(asdict(choice))
    )
    assert values["cost_model"]["bandwidth"] == 100.0 and values["gradient_steps"] == 11


@QUICK
@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=12))
def test_a_front_of_a_front_is_itself_and_falls(points):
    front = pareto_front(points)
    assert pareto_front(front) == front and set(front) <= set(points)
    assert [x for x, _ in front] == sorted({x for x, _ in front})
    assert [y for _, y in front] == sorted({y for _, y in front}, reverse=True)


REFUSED = {
    "no target": ({"target_loss": 0.0}, "target_loss=0.0 is not allowed"),
    "nobody": ({"max_clients": 0}, "max_clients=0 is out of range"),
    "more than there are": ({"max_clients": 4}, r"max_clients=4 exceeds num_clients=3; choose 1\.\.3"),
    "no steps": ({"max_steps": 0}, "max_steps=0 is out of range"),
    "an empty batch": ({"batch_size": 0}, "batch_size=0 is out of range"),
    "bits by formula": (
        {"cost_model": fedpaq.CostModel.from_ratio(1, accounting="elias")},
        "accounting='elias' is not planned with; .* choose 'payload'",
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
