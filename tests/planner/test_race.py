"""Races of scripted pilots: who wins, who is dropped, and when they end."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from fedpaq.planner.pilot import Candidate
from fedpaq.planner.race import ENOUGH, FEWEST, race, rank
from small_plans import finish_of, setting_of


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
                now = candidate.seconds[-1]
                candidate.finish = finish_of((len(candidate.losses) - 1,), seconds=now, slowest=now)


def test_the_first_to_the_target_wins_and_nobody_runs_much_longer():
    quick = Recorded(setting_of(1, 1, 1), 1.0, {0.1: lambda k: 1.0 - 0.01 * k})  # 0.5 after 50 s
    strong = Recorded(setting_of(5, 1, 1), 10.0, {0.1: lambda k: 1.0 - 0.2 * k})  # 0.4 after 30 s
    slow = Recorded(setting_of(2, 1, 1), 1.0, {0.1: lambda k: 1.0 - 0.001 * k})
    late = Recorded(setting_of(50, 1, 1), 100.0, {0.1: lambda k: 0.0})  # there after 100 s
    finished = race([quick, strong, slow, late], max_steps=10**6)
    assert [candidate.setting for candidate in finished] == [strong.setting, quick.setting]
    assert (finished[0].finish.seconds, finished[0].finish.rounds) == (30.0, (3,))
    assert slow.played == 75  # two and a half times 30 s, as only two all_settings have finished
    assert late.played == 0


def test_a_race_with_enough_finished_settings_ends_sooner():
    many = [Recorded(setting_of(1, r, 1), 10.0, {0.1: lambda k: 1.0 - 0.2 * k}) for r in range(1, ENOUGH + 1)]
    slow = Recorded(setting_of(2, 1, 1), 1.0, {0.1: lambda k: 1.0 - 0.001 * k})
    assert len(race([*many, slow], max_steps=10**6)) == ENOUGH
    assert slow.played == 45  # one and a half times 30 s


def test_a_race_that_nobody_can_win_ends():
    stuck = Recorded(setting_of(2, 1, 1), 1.0, {0.1: lambda k: 0.9})
    assert race([stuck], max_steps=100) == []
    assert stuck.played == 50


def test_a_race_ends_at_its_time_limit():
    slow = Recorded(setting_of(1, 1, 1), 1.0, {0.1: lambda k: 0.9})
    assert race([slow], max_steps=10**6, max_seconds=7.0) == []
    assert slow.played == 7


@given(st.integers(FEWEST + 1, 80))
def test_ranking_keeps_the_better_half_and_those_without_a_round(count):
    pilot = Recorded(setting_of(1, 1, 1), 1.0, {float(i): (lambda k, i=i: float(i)) for i in range(count)})
    waiting = Recorded(setting_of(9, 1, 1), 9.0, {0.5: lambda k: 0.0})
    pilot.play()
    rank([pilot, waiting], 1.0)
    kept = max(FEWEST, math.ceil((count + 1) / 2))
    # The waiting one, with the loss before training, 1.0, takes the third place.
    assert [candidate.step_size for candidate in pilot.alive] == [float(i) for i in range(count) if i < kept - 1]
    assert waiting.alive


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
                    now = candidate.seconds[-1]
                    candidate.finish = finish_of((self.plays,), seconds=now, slowest=now)


def test_a_race_returns_the_finished_by_their_slowest_seed():
    slow = Scripted(setting_of(1, 1, 1), [3, 2, 1, 0], [3, 2, 0])
    fast = Scripted(setting_of(1, 2, 1), [3, 0], pace=1.25)
    told = []
    finished = race([slow, fast], max_steps=100, progress=told.append)
    assert [(candidate.setting, candidate.step_size) for candidate in finished] == [
        (fast.setting, 0.1),
        (slow.setting, 0.2),
        (slow.setting, 0.1),
    ]
    assert told == sorted(told) and all(not candidate.alive for candidate in finished)


def test_a_race_gives_a_pilot_up_at_the_most_steps():
    never = Scripted(setting_of(3, 1, 1), [2, 1])
    assert race([never], max_steps=10) == [] and never.plays == 4  # 9 steps are below 10, 12 are not


def test_a_race_never_plays_past_its_time():
    never = Scripted(setting_of(1, 1, 1), [2, 1], pace=1.5)
    assert race([never], max_steps=1000, max_seconds=7.4) == [] and never.plays == 4


def test_ranking_is_by_the_loss_at_that_time_and_not_the_latest():
    pilots = [Scripted(setting_of(1, r, 1), [9, r, 100 - r]) for r in range(1, 31)]
    for pilot in pilots:
        pilot.play()
        pilot.play()
    rank(pilots, seconds=1.5)  # after the first round: r is the loss
    assert [pilot.setting.clients_per_round for pilot in pilots if pilot.alive] == list(range(1, 16))
