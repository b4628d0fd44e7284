"""Judging: levels, times, intervals and verdicts, against plain loops and planted truths."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpaq import CostModel, codec
from fedpaq.experiments import PaperSetting, judging
from fedpaq.experiments.curve import ACCOUNTINGS
from fedpaq.experiments.judging import FAILS, HOLDS, TIED, UNDECIDED, Ratio
from small_figure import MNIST, planted, planted_mnist

COST = CostModel.from_ratio(100)


def ratio(low, high):
    return Ratio("", math.sqrt(low * high), low, high)


def test_the_interval_is_students_t_on_the_log_ratios():
    first, second = np.array([1.0, 2, 3, 4, 5]), np.array([2.0, 5, 6, 9, 11])
    logs = np.log(second / first)
    half = 2.7764451 * logs.std(ddof=1) / math.sqrt(5)  # t, 4 degrees of freedom, 97.5 %
    found = judging.paired_ratio("", first, second)
    assert found.value == pytest.approx(math.exp(logs.mean()))
    assert found.low == pytest.approx(math.exp(logs.mean() - half))
    assert found.high == pytest.approx(math.exp(logs.mean() + half))


def test_about_95_percent_of_intervals_cover_the_truth():
    draws = np.random.default_rng(0)
    found = [judging.paired_ratio("", np.ones(5), np.exp(draws.normal(0.3, 0.2, 5))) for _ in range(2000)]
    covered = np.mean([entry.low <= math.exp(0.3) <= entry.high for entry in found])
    assert abs(covered - 0.95) < 5 * math.sqrt(0.95 * 0.05 / 2000)


def test_common_levels_end_at_the_lowest_loss_every_run_reaches():
    fast, slow = planted(PaperSetting(1, 5, 10), 0.6), planted(PaperSetting(1, 5, 10), 0.8)
    levels = judging.common_levels(fast, slow)
    assert len(levels) == 5 and (np.diff(levels) < 0).all() and levels[0] < 2.0
    assert levels[-1] == pytest.approx(slow.loss.min(axis=1).max())
    np.testing.assert_allclose(levels[1:] / levels[:-1], levels[0] / 2.0)


def test_without_progress_there_is_no_common_level_and_no_verdict():
    stuck, fast = planted(PaperSetting(1, 5, 10), 1.1), planted(PaperSetting(1, 5, 10), 0.6)
    assert judging.common_levels(stuck, fast).size == 0
    assert judging.all_above(judging.mean_time(fast, stuck, ("a", "b"), "payload", COST)).verdict == UNDECIDED


@pytest.mark.parametrize("accounting", ACCOUNTINGS)
def test_time_to_a_level_is_that_of_the_first_round_at_or_below_it(accounting):
    curve = planted(PaperSetting(1, 5, 10), 0.7, noise=0.2)
    seconds = curve.axis("seconds", accounting, COST)
    for level in (1.5, 0.8, 0.3):
        expected = [next(seconds[seed, k] for k in range(11) if curve.loss[seed, k] <= level) for seed in range(5)]
        np.testing.assert_array_equal(judging.time_to(curve, level, accounting, COST), expected)


def test_the_lowest_level_is_reached_by_all():
    fast, slow = planted(PaperSetting(1, 5, 10), 0.6), planted(PaperSetting(1, 5, 10), 0.8)
    lowest = float(judging.common_levels(fast, slow)[-1])
    assert (judging.time_to(slow, lowest, "payload", COST) > 0).all()


def test_a_planted_factor_of_two_in_speed_is_found():
    slow, fast = (planted(PaperSetting(1, 5, 1), 0.98, noise=1e-4), planted(PaperSetting(1, 5, 1), 0.98**2, noise=1e-4))
    (found,) = judging.mean_time(fast, slow, ("fast", "slow"), "payload", COST)
    assert found.low < 2 < found.high or abs(found.value - 2) < 0.05  # a round is the finest time there is


def test_losses_and_total_times_compare_the_last_round():
    first, second = (planted(PaperSetting(1, 5, 10), 0.8, noise=0), planted(PaperSetting(1, 10, 10), 0.9, noise=0))
    (loss,) = judging.final_loss(first, second, ("a", "b"))
    assert loss.value == pytest.approx((0.9 / 0.8) ** 10) and loss.low == pytest.approx(loss.high)
    (total,) = judging.total_time(first, second, ("a", "b"), "payload", COST)
    bandwidth = COST.bandwidth_for(1000)
    assert total.value == pytest.approx((1000 + 32000 / bandwidth) / (1000 + 16000 / bandwidth))


@pytest.mark.parametrize(
    ("intervals", "verdict", "decisive"),
    [
        ([(1.1, 2.0), (1.01, 9.0)], HOLDS, (1.01, 9.0)),
        ([(1.1, 2.0), (0.9, 1.2)], UNDECIDED, (0.9, 1.2)),
        ([(1.1, 2.0), (0.9, 1.12)], TIED, (0.9, 1.12)),
        ([(0.98, 1.01), (0.99, 1.2)], UNDECIDED, (0.99, 1.2)),
        ([(1.1, 2.0), (0.5, 0.9)], FAILS, (0.5, 0.9)),
        ([], UNDECIDED, None),
    ],
)
def test_every_ratio_above_one(intervals, verdict, decisive):
    finding = judging.all_above([ratio(*interval) for interval in intervals])
    assert finding.verdict == verdict
    assert (finding.decisive and (finding.decisive.low, finding.decisive.high)) == decisive


def test_a_tie_is_good_enough_for_the_best():
    assert judging.all_above([ratio(0.97, 1.1)], 1 / judging.TIE).verdict == HOLDS
    assert judging.all_above([ratio(0.95, 1.2)], 1 / judging.TIE).verdict == UNDECIDED
    assert judging.all_above([ratio(0.90, 1.1)], 1 / judging.TIE).verdict == TIED
    assert judging.all_above([ratio(0.90, 1.0)], 1 / judging.TIE).verdict == TIED  # on the threshold
    assert judging.all_above([ratio(0.80, 0.94)], 1 / judging.TIE).verdict == FAILS


@pytest.mark.parametrize(
    ("intervals", "verdict"),
    [
        ([(0.99, 1.01), (1.2, 1.4)], HOLDS),
        ([(0.99, 1.01), (0.5, 0.6)], HOLDS),
        ([(0.99, 1.01), (0.97, 1.03)], FAILS),
        ([(0.99, 1.01), (0.9, 1.4)], UNDECIDED),
        ([(0.99, 1.01), (0.9, 1.12)], TIED),
        ([], UNDECIDED),
    ],
)
def test_some_ratio_differs_by_more_than_a_tie(intervals, verdict):
    assert judging.some_differ([ratio(*interval) for interval in intervals]).verdict == verdict


def test_more_seeds_are_wanted_for_what_is_open_and_far_or_rough():
    decided, far, near, rough = ratio(1.1, 1.3), ratio(0.95, 1.2), ratio(0.98, 1.01), ratio(0.9, 1.1)
    assert judging.all_above([decided]).unsettled == ()
    assert judging.all_above([decided, near]).unsettled == ()
    assert set(judging.all_above([decided, far, near, rough]).unsettled) == {far, rough}
    assert judging.all_above([decided, near, rough]).verdict == TIED
    assert judging.all_above([far, ratio(0.5, 0.9)]).unsettled == ()  # refuted, whatever the other does
    assert judging.some_differ([far, ratio(1.2, 1.3)]).unsettled == ()
    assert judging.some_differ([far, near]).unsettled == (far,)


@given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(1.0, 3.0)), min_size=1, max_size=6))
def test_a_claim_and_its_opposite_never_both_hold(pairs):
    intervals = [ratio(low, low * width) for low, width in pairs]
    opposite = [ratio(1 / entry.high, 1 / entry.low) for entry in intervals]
    assert {judging.all_above(intervals).verdict, judging.all_above(opposite).verdict} != {HOLDS}


@pytest.fixture(scope="module")
def curves():
    return planted_mnist()


def time_by_loop(curve, seed, level, accounting, model):
    """Seconds until the loss is first at or below the level, walked round by round."""
    setting, seconds = curve.settings.setting, 0.0
    for k in range(curve.loss.shape[1]):
        if accounting == "payload":
            bits = 8 * curve.payload_bytes[seed, k]
        elif accounting == "elias":
            bits = k * setting.clients_per_round * codec.message_bits(curve.dimension, setting.levels, "elias")
        else:
            width = 32 if setting.levels is None else 1 + math.ceil(math.log2(setting.levels + 1))
            norm = 0 if setting.levels is None else 32
            bits = k * setting.clients_per_round * (curve.dimension * width + norm)
        seconds = curve.computation_seconds[seed, k] + bits / model.bandwidth_for(curve.dimension)
        if curve.loss[seed, k] <= level * (1 + 1e-9):
            return seconds
    raise AssertionError(f"level {level} is never reached")


@pytest.mark.parametrize("accounting", ACCOUNTINGS)
@pytest.mark.parametrize("pair", [("s = 1", "no quantization"), ("s = 10", "s = 1")])
def test_times_at_levels_equal_a_walk_through_the_rounds(pair, accounting, curves):
    settings_of = MNIST.panel("levels").curves
    first, second = (curves[settings_of[name]] for name in pair)
    model = CostModel.from_ratio(MNIST.ratio)
    ratios = judging.times_at_levels(first, second, pair, accounting, model)
    levels = judging.common_levels(first, second)
    for number, (level, found) in enumerate(zip(levels, ratios, strict=True), start=1):
        times = [[time_by_loop(c, seed, level, accounting, model) for seed in range(5)] for c in (first, second)]
        expected = math.exp(sum(math.log(b / a) for a, b in zip(*times, strict=True)) / 5)
        assert found.value == pytest.approx(expected)
        assert found.what == f"time of {pair[1]} / {pair[0]}"
        assert found.at == f"level {number} of 5, loss {level:.3g}"
        assert found.curves == tuple(settings_of[name] for name in pair)


positive = st.lists(st.floats(0.01, 100.0), min_size=2, max_size=6)


@given(positive, st.floats(0.1, 10.0), st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_a_ratio_turns_over_with_its_curves_and_ignores_units_and_the_order_of_seeds(first, unit, seed):
    draws = np.random.default_rng(seed)
    one = np.array(first)
    other = one * draws.uniform(0.5, 2.0, len(one))
    found, turned = judging.paired_ratio("", one, other), judging.paired_ratio("", other, one)
    assert turned.value == pytest.approx(1 / found.value)
    assert (turned.low, turned.high) == (pytest.approx(1 / found.high), pytest.approx(1 / found.low))
    order = draws.permutation(len(one))
    again = judging.paired_ratio("", unit * one[order], unit * other[order])
    assert (again.low, again.value, again.high) == pytest.approx((found.low, found.value, found.high))
    assert found.low <= found.value <= found.high


def test_one_seed_gives_a_ratio_without_an_interval():
    found = judging.paired_ratio("x", np.array([2.0]), np.array([3.0]))
    assert (found.what, found.low, found.value, found.high) == ("x", 1.5, 1.5, 1.5)
