"""The planner: its parts on their own, the whole on a small problem, and what it refuses."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedpaq
from fedpaq.errors import ConfigError
from fedpaq.planner import RoundSetting, SearchSpace, Task, plan
from fedpaq.planner.expected_time import expected_computation
from fedpaq.planner.pilot import Candidate, Finish, Pilot
from fedpaq.planner.plot import pareto_front, save_plot, time_map
from fedpaq.planner.race import ENOUGH, FEWEST, race, rank
from fedpaq.planner.validation import rerun, single_runs, validate

COST = fedpaq.CostModel.from_ratio(100)


@pytest.fixture(scope="module")
def problem():
    return fedpaq.problems.synthetic_logistic(
        num_clients=8, samples_per_client=20, dimension=6, regularization=0.01
    )


@pytest.fixture(scope="module")
def task(problem):
    return Task(problem=problem, target_loss=0.56, cost_model=COST, max_clients=8, batch_size=5)


SPACE = SearchSpace((1, 4), (2, 8), (1, None), (0.5, 2.0))


def test_a_pilot_is_a_sweep_that_can_be_paused(problem):
    """Round by round it follows the runs of ``sweep``; its seconds are the mean ones of its rounds."""
    task = Task(problem=problem, target_loss=0.01, cost_model=COST, max_clients=8, batch_size=5)
    setting = RoundSetting(4, 2, 1)
    pilot = Pilot(task, setting, [0.5, 2.0], [3, 4])
    for _ in range(5):
        pilot.play()
    histories = histories_of(problem, setting, [0.5, 2.0], [3, 4], rounds=5)
    for candidate, runs in zip(pilot.candidates, (histories[:2], histories[2:]), strict=True):
        # All 160 samples are watched, so the losses are those of the histories up to summation order.
        for k in range(6):
            assert candidate.losses[k] == pytest.approx(
                np.mean([run.records[k].loss for run in runs]), rel=1e-6
            )
            uploaded = max(run.records[k].payload_bytes for run in runs)
            computing = k * expected_computation(COST, setting, batch_size=5)
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


def test_a_pilot_announces_when_its_round_will_be_over(task):
    """H_8 = 2.718: 4 steps on 5 samples take 20 (0.5 + 2.718 / 2) on average; float32 uploads are known."""
    pilot = Pilot(task, RoundSetting(4, 8, 0), [0.5], [0])
    computing = 20 * (0.5 + sum(1 / i for i in range(1, 9)) / 2)
    each = len(fedpaq.encode(fedpaq.Identity().quantize(np.ones(6, np.float32), key=fedpaq.Key(seed=0))))
    uploading = COST.communication_seconds(8 * 8 * each, 6)
    assert pilot.next_seconds() == pytest.approx(computing + uploading)
    pilot.play()
    assert pilot.candidates[0].seconds[-1] == pytest.approx(computing + uploading)
    assert pilot.next_seconds() == pytest.approx(2 * (computing + uploading))


def test_an_arm_finishes_when_every_seed_has_been_at_the_target(problem, task):
    """With the first times that the histories of separate runs have."""
    setting, seeds = RoundSetting(1, 2, 1), [3, 4, 5]
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


def test_an_arm_that_diverges_drops_out(problem):
    task = Task(problem=problem, target_loss=0.01, cost_model=COST, max_clients=8, batch_size=5)
    pilot = Pilot(task, RoundSetting(4, 2, 0), [0.5, 1e30], [0])
    for _ in range(3):
        pilot.play()
    assert [candidate.step_size for candidate in pilot.alive] == [0.5]


class Recorded:
    """A pilot whose candidates follow given losses to a target of 0.5; every round takes ``seconds``."""

    def __init__(self, setting, seconds, losses):
        self.setting, self._seconds, self._losses = setting, seconds, losses
        self.candidates = [Candidate(setting, eta, [1.0], [0.0]) for eta in losses]
        self.played = 0

    @property
    def alive(self):
        return [candidate for candidate in self.candidates if candidate.alive]

    def next_seconds(self):
        return self.alive[0].seconds[-1] + self._seconds

    def play(self):
        self.played += 1
        for candidate in self.alive:
            candidate.losses.append(self._losses[candidate.step_size](len(candidate.losses)))
            candidate.seconds.append(candidate.seconds[-1] + self._seconds)
            if candidate.loss <= 0.5:
                candidate.finish = Finish(
                    (len(candidate.losses) - 1,), (1.0,), candidate.seconds[-1], candidate.seconds[-1]
                )


def test_the_first_to_the_target_wins_and_nobody_runs_much_longer():
    quick = Recorded(RoundSetting(1, 1, 1), 1.0, {0.1: lambda k: 1.0 - 0.01 * k})  # 0.5 after 50 s
    strong = Recorded(RoundSetting(5, 1, 1), 10.0, {0.1: lambda k: 1.0 - 0.2 * k})  # 0.4 after 30 s
    slow = Recorded(RoundSetting(2, 1, 1), 1.0, {0.1: lambda k: 1.0 - 0.001 * k})
    late = Recorded(RoundSetting(50, 1, 1), 100.0, {0.1: lambda k: 0.0})  # there after 100 s
    finished = race([quick, strong, slow, late], max_steps=10**6)
    assert [candidate.setting for candidate in finished] == [strong.setting, quick.setting]
    assert (finished[0].finish.seconds, finished[0].finish.rounds) == (30.0, (3,))
    assert slow.played == 75  # two and a half times 30 s, as only two all_settings have finished
    assert late.played == 0


def test_a_race_with_enough_finished_shapes_ends_sooner():
    many = [Recorded(RoundSetting(1, r, 1), 10.0, {0.1: lambda k: 1.0 - 0.2 * k}) for r in range(1, ENOUGH + 1)]
    slow = Recorded(RoundSetting(2, 1, 1), 1.0, {0.1: lambda k: 1.0 - 0.001 * k})
    assert len(race([*many, slow], max_steps=10**6)) == ENOUGH
    assert slow.played == 45  # one and a half times 30 s


def test_a_race_that_nobody_can_win_ends():
    stuck = Recorded(RoundSetting(2, 1, 1), 1.0, {0.1: lambda k: 0.9})
    assert race([stuck], max_steps=100) == []
    assert stuck.played == 50


def test_a_race_ends_at_its_time_limit():
    slow = Recorded(RoundSetting(1, 1, 1), 1.0, {0.1: lambda k: 0.9})
    assert race([slow], max_steps=10**6, max_seconds=7.0) == []
    assert slow.played == 7


@given(st.integers(FEWEST + 1, 80))
def test_ranking_keeps_the_better_half_and_those_without_a_round(count):
    pilot = Recorded(RoundSetting(1, 1, 1), 1.0, {float(i): (lambda k, i=i: float(i)) for i in range(count)})
    waiting = Recorded(RoundSetting(9, 1, 1), 9.0, {0.5: lambda k: 0.0})
    pilot.play()
    rank([pilot, waiting], 1.0)
    kept = max(FEWEST, math.ceil((count + 1) / 2))
    # The waiting one, with the loss before training, 1.0, takes the third place.
    assert [candidate.step_size for candidate in pilot.alive] == [
        float(i) for i in range(count) if i < kept - 1
    ]
    assert waiting.alive


def test_the_final_tries_neighbouring_step_sizes_of_distinct_shapes(task):
    one, two = RoundSetting(1, 8, 0), RoundSetting(4, 8, 0)
    choices, spent = validate(task, [Candidate(one, 0.5), Candidate(one, 1.0), Candidate(two, 0.5)])
    assert {choice.setting for choice in choices} <= {one, two}
    assert {choice.step_size for choice in choices} <= {0.25, 0.3536, 0.5, 0.7071}
    assert choices[0].low <= choices[0].seconds <= choices[0].high
    assert spent > 0


def test_a_heat_drops_what_does_not_get_there_in_time(task):
    choices, _ = rerun(task, {RoundSetting(1, 8, 0): [0.5], RoundSetting(1, 4, 0): [1e-4]}, range(4))
    assert [choice.setting for choice in choices] == [RoundSetting(1, 8, 0)]
    assert rerun(task, {}, range(4)) == ([], 0)


def test_single_runs_average_to_the_mean_time(task):
    """2000 runs of 3 rounds with drawn computation times, against the mean, within 5 standard errors."""
    setting, seeds = RoundSetting(4, 8, 0), range(2000)
    finish = Finish((3,) * 2000, (100.0,) * 2000, 0.0, 0.0)
    seconds = single_runs(task, setting, finish, seeds)
    mean = 3 * expected_computation(COST, setting, batch_size=5) + COST.communication_seconds(800, 6)
    assert abs(seconds.mean() - mean) < 5 * seconds.std() / math.sqrt(2000)


def test_a_plan_recommends_a_run_that_reaches_the_target(problem):
    found = plan(problem, target_loss=0.56, cost_model=COST, batch_size=5, space=SPACE)
    assert all(found.pick.seconds <= choice.seconds for choice in found.runners_up)
    assert found.fedavg.seconds >= found.pick.seconds * 0.99
    assert found.qsgd.setting.local_steps == 1 and found.qsgd.setting.clients_per_round == 8
    history = fedpaq.train(
        problem, found.config(seed=5), quantizer=found.pick.setting.quantizer, cost_model=COST
    )
    assert history.final.loss < 0.59  # a mean run, so not always below 0.56 itself
    values = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert values["pick"]["setting"]["local_steps"] == found.pick.setting.local_steps


def test_the_pick_follows_the_network(problem):
    """When uploads cost nothing clients synchronise more often than when they cost everything."""
    space = SearchSpace((1, 16), (4,), (1, None), (0.1, 0.4, 1.6))
    cheap, dear = (
        plan(
            problem,
            target_loss=0.54,
            cost_model=fedpaq.CostModel.from_ratio(ratio),
            batch_size=5,
            space=space,
            compare=False,
        ).pick.setting
        for ratio in (0.001, 10_000)
    )
    assert cheap.local_steps <= dear.local_steps == 16


def test_a_picture_is_drawn(problem, tmp_path):
    space = SearchSpace((1, 4), (4,), (1, None), (0.5, 1.0))
    found = plan(problem, target_loss=0.56, cost_model=COST, batch_size=5, space=space, compare=False)
    times = time_map(found, space)
    assert set(times) == {(1, 1), (1, 0), (4, 1), (4, 0)}
    save_plot(found, times, tmp_path / "plan.png")
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


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


def test_expected_computation_is_the_mean_of_the_slowest():
    draws = np.random.default_rng(0).exponential(0.5, size=(20_000, 5)).max(axis=1) + 0.5
    expected = expected_computation(COST, RoundSetting(1, 5, 0), batch_size=1)
    assert abs(draws.mean() - expected) < 5 * draws.std() / math.sqrt(20_000)


@given(st.lists(st.tuples(st.floats(1, 9), st.floats(1, 9)), min_size=1, max_size=20))
def test_the_front_holds_exactly_the_unbeaten_points(points):
    front = pareto_front(points)
    for point in points:
        beaten = any(other[0] <= point[0] and other[1] <= point[1] and other != point for other in points)
        assert (point in front) != beaten


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target_loss": 1e-6}, "is below .*, the least training loss"),
        ({"target_loss": 5.0}, "is not below the loss before training"),
        ({"max_clients": 9}, "max_clients=9 exceeds num_clients=8"),
        ({"max_steps": 1, "target_loss": 0.51}, "within max_steps=1 local steps"),
        ({"max_clients": 4}, "clients_per_round=8 of the search space exceeds max_clients=4"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"cost_model": fedpaq.CostModel.from_ratio(1, accounting="elias")}, "charges real payloads"),
    ],
)
def test_what_cannot_be_planned_is_refused_with_its_reason(problem, change, message):
    arguments = {"target_loss": 0.56, "cost_model": COST, "batch_size": 5, "space": SPACE} | change
    with pytest.raises(ConfigError, match=message):
        plan(problem, **arguments)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (((), (2,), (1,), (0.1,)), "local_steps="),
        (((1, 1), (2,), (1,), (0.1,)), "none twice"),
        (((1,), (0,), (1,), (0.1,)), "clients_per_round=0"),
        (((1,), (2,), (0,), (0.1,)), "levels=0"),
        (((1,), (2,), (1,), (-0.1,)), "step_sizes=-0.1"),
    ],
)
def test_an_impossible_search_space_is_refused(space, message):
    with pytest.raises(ConfigError, match=message):
        SearchSpace(*space)
