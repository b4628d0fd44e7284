"""Tuning: the rule as written down."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedpaq
from fedpaq.config import round_to_4_digits
from fedpaq.experiments import FIGURES, PLOTS, CurveSettings, PaperSetting, tuning
from fedpaq.experiments.curve import curve_settings


@pytest.fixture(scope="module")
def quadratic():
    return fedpaq.problems.load("synthetic-quadratic", num_clients=50)


def wanted(**changes):
    return CurveSettings("synthetic-quadratic", PaperSetting(None, 5, 10), tuning_seeds=(5, 6, 7), **changes)


def exhaustive(problem, chosen, step_sizes):
    """Areas of the loss, one run at a time: the rule's own words as a loop."""
    scout = problem.evaluated_on(fedpaq.experiments.tuning.np.arange(0, len(problem.inputs), 10))
    areas = {}
    for eta in step_sizes:
        losses = []
        for seed in chosen.tuning_seeds:
            config = fedpaq.FedPAQConfig(clients_per_round=5, local_steps=10, total_steps=100, step_size=eta, seed=seed)
            (history,) = fedpaq.sweep(scout, [config])
            diverged = history.diverged is not None
            losses.append(math.inf if diverged else sum(r.loss for r in history.records[1:]) / 10)
        areas[eta] = sum(losses) / len(losses)
    return areas


def test_the_chosen_step_size_has_the_lowest_area_of_the_fine_grid(quadratic):
    chosen, losses = tuning.tune(quadratic, wanted(), lambda _: None)
    full = [eta for eta, found in losses.items() if len(found) == 3]
    assert len(full) == 5
    areas = exhaustive(quadratic, wanted(), full)
    assert chosen == min(areas, key=areas.get)
    for eta in full:
        assert tuning.mean_loss(losses[eta]) == pytest.approx(areas[eta], rel=1e-4)


def test_the_coarse_grid_is_widened_until_its_best_lies_inside(quadratic):
    _, losses = tuning.tune(quadratic, wanted(coarse=(1e-7, 4e-7)), lambda _: None)
    coarse = {eta: found[:2] for eta, found in losses.items() if eta in (1e-7, 4e-7) or len(found) == 2}
    best = tuning.best({eta: found for eta, found in losses.items() if len(found) == 3})
    assert best > 1e-4 and max(losses) > best
    assert len(coarse) > 3


def test_divergence_counts_as_infinitely_bad_and_ties_go_to_the_smaller():
    assert tuning.best({0.1: [1.0, 1.0], 1.0: [0.1, None]}) == 0.1
    assert tuning.best({0.2: [1.0], 0.1: [1.0]}) == 0.1


def test_tuning_seeds_are_never_the_curves_own():
    for figure in (*FIGURES.values(), *PLOTS.values()):
        for each in curve_settings(figure):
            assert not set(each.tuning_seeds) & set(each.seeds)


def paths(*means):
    """Two runs around a mean."""
    return [np.array(means) * factor for factor in (0.9, 1.1)]


@pytest.mark.parametrize(
    ("losses", "is_steady"),
    [
        ((1.0, 0.5, 0.25), True),
        ((1.0, 1.09, 0.25), True),
        ((1.0, 1.11, 0.25), False),  # above the start
        ((1.0, 0.2, 0.21, 0.19), True),
        ((1.0, 0.2, 0.4, 0.1), False),  # above what it had reached
    ],
)
def test_a_mean_loss_that_rises_by_over_a_tenth_is_out_under_the_steady_rule_only(losses, is_steady):
    found = tuning.scores(paths(*losses), "steady")
    plain = tuning.scores(paths(*losses), "area")
    assert found == (plain if is_steady else [None, None])
    area = sum(losses[1:]) / (len(losses) - 1)
    assert plain == pytest.approx([0.9 * area, 1.1 * area], rel=1e-5)


def test_one_run_may_rise_where_the_mean_does_not():
    up, down = np.array([1.0, 1.5, 0.5]), np.array([1.0, 0.1, 0.1])
    assert None not in tuning.scores([up, down], "steady")
    assert tuning.scores([up, None], "area") == [1.0, None]


def test_the_steady_rule_goes_down_until_something_is_steady(monkeypatch, quadratic):
    """Large step sizes look best on the two coarse seeds, but rise on the third above a limit."""
    limit = 0.002

    def run(problem, settings, step_sizes, seeds, advance):
        return [(eta, seed) for eta in step_sizes for seed in seeds]

    def path_of(history):
        eta, seed = history
        return np.array([1.0, 9.0 if seed == 7 and eta > limit else 1 / (1 + eta)])

    monkeypatch.setattr(tuning, "run", run)
    monkeypatch.setattr(tuning, "path_of", path_of)
    chosen, losses = tuning.tune(quadratic, wanted(rule="steady", coarse=(0.01, 0.04, 0.16)), lambda _: None)
    assert limit / 2**0.5 * 0.999 < chosen <= limit  # the largest of the grid below it
    assert all(len(losses[eta]) == 3 for eta in losses if eta < 4 * limit)


def test_step_sizes_can_be_typed():
    assert round_to_4_digits(0.0625 * 2**0.5) == 0.08839


@pytest.mark.parametrize(
    ("fine", "beyond"),
    [
        ({1.0: [3.0], 2.0: [1.0], 4.0: [2.0]}, None),
        ({1.0: [1.0], 2.0: [2.0]}, 0.7071),
        ({1.0: [2.0], 2.0: [1.0]}, 2.828),
        ({1.0: [None], 2.0: [None]}, 0.7071),  # nothing will do: only smaller ones can help
        ({1.0: [1.0], 2.0: [None]}, 0.7071),
        ({4.0**-10: [1.0], 1.0: [2.0]}, None),  # far enough
    ],
)
def test_the_fine_grid_goes_on_where_its_best_lies_at_an_end(fine, beyond):
    assert tuning._outwards(fine, 2**0.5, (4.0**-3, 4.0**-2)) == beyond


losses = st.lists(st.one_of(st.none(), st.floats(0.0, 10.0)), min_size=1, max_size=3)


@given(st.dictionaries(st.sampled_from([0.01, 0.02, 0.04, 0.08]), losses, min_size=1))
@settings(max_examples=50, deadline=None)
def test_the_best_step_size_is_the_smallest_of_those_with_the_least_mean(found):
    means = {eta: math.inf if None in tried else sum(tried) / len(tried) for eta, tried in found.items()}
    least = min(means.values())
    assert tuning.best(found) == min(eta for eta, mean in means.items() if mean == least)


@pytest.mark.parametrize(
    ("tried", "wider"),
    [
        ({1.0: [3.0], 4.0: [2.0], 16.0: [3.0]}, None),
        ({1.0: [1.0], 4.0: [2.0], 16.0: [3.0]}, 0.25),
        ({1.0: [3.0], 4.0: [2.0], 16.0: [1.0]}, 64.0),
        ({1.0: [None], 4.0: [None], 16.0: [None]}, 0.25),
        ({1.0: [2.0], 4.0: [None], 16.0: [None]}, 0.25),
        ({4.0**-6: [1.0], 1.0: [2.0], 4.0: [2.0]}, None),  # as wide as a grid gets
        ({1.0: [2.0], 4.0: [2.0], 16.0 * 4.0**6: [1.0]}, None),
    ],
)
def test_a_grid_grows_at_the_end_where_its_best_lies(tried, wider):
    assert tuning._outwards(tried, 4, (1.0, 4.0, 16.0)) == wider


@given(st.floats(1e-8, 1e8))
@settings(max_examples=50, deadline=None)
def test_a_rounded_step_size_stays_and_is_right_to_half_a_thousandth(eta):
    once = round_to_4_digits(eta)
    assert round_to_4_digits(once) == once and once == pytest.approx(eta, rel=5.1e-4)
