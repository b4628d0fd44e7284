"""A plan from the bounds alone: rounds that just suffice, and orders that make sense."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedpaq
from fedpaq.errors import ConfigError
from fedpaq.planner import RoundSetting
from fedpaq.planner.closed_form import TheoryInputs, _least, plan_from_theory, rounds_needed
from fedpaq.quantizers import LowPrecision
from fedpaq.theory import Assumptions, NonConvexBound, StronglyConvexBound
from small_plans import PAID, setting_of, space_of

KNOWN = TheoryInputs(
    assumptions=Assumptions(smoothness=4.0, strong_convexity=1.0, gradient_variance=10.0),
    start=5.0,
    dimension=100,
    num_clients=20,
)
SETTINGS = [setting_of(tau, r, s) for tau in (1, 5) for r in (5, 20) for s in (1, 10, 0)]


def test_rounds_just_suffice_for_theorem_1():
    setting = setting_of(5, 5, 10)
    rounds = rounds_needed(KNOWN, setting, 0.1, 10)
    bounds = [
        StronglyConvexBound(
            assumptions=replace(KNOWN.assumptions, variance_bound=setting.quantizer.variance_bound(100)),
            num_clients=20,
            clients_per_round=5,
            local_steps=5,
            batch_size=10,
            variant="corrected",
            loss_scale=scale,
        )
        for scale in np.geomspace(1e-4, 1e4, 400)
    ]
    enough, one_less = (
        [2.0 * bound.at(bound.first_round + count, 5.0) <= 0.1 for bound in bounds]
        for count in (math.ceil(1.002 * rounds), math.floor(0.97 * rounds))
    )
    assert any(enough) and not any(one_less)  # the best of 400 scales, 5 % apart
    as_written = next(bound for bound in bounds if bound.loss_scale >= 1)
    assert 2.0 * as_written.at(as_written.first_round + rounds, 5.0) > 0.1


def test_rounds_just_suffice_for_theorem_2():
    smooth = replace(KNOWN, assumptions=replace(KNOWN.assumptions, strong_convexity=None))
    rounds = rounds_needed(smooth, setting_of(2, 20, 0), 0.05, 10)
    values = [
        NonConvexBound(
            assumptions=smooth.assumptions,
            num_clients=20,
            clients_per_round=20,
            local_steps=2,
            total_steps=2 * count,
            batch_size=10,
            variant="corrected",
        )
        for count in (rounds, rounds - 1)
    ]
    assert values[0].holds and values[0].at(5.0) <= 0.05
    assert not values[1].holds or values[1].at(5.0) > 0.05


def test_slow_networks_prefer_fewer_bits():
    slow, fast = (
        plan_from_theory(KNOWN, SETTINGS, target=0.1, cost_model=fedpaq.CostModel.from_ratio(ratio))
        for ratio in (10_000, 0.001)
    )
    assert slow == sorted(slow, key=lambda guarantee: guarantee.seconds)
    assert slow[0].setting.levels > 0
    assert fast[0].setting.levels == 0


def test_a_stricter_target_takes_longer():
    model = fedpaq.CostModel.from_ratio(100)
    loose, strict = (
        plan_from_theory(KNOWN, SETTINGS[:1], target=target, cost_model=model)[0] for target in (1.0, 0.01)
    )
    assert strict.rounds > loose.rounds


@pytest.mark.parametrize(("change", "message"), [({"start": 0.0}, "start=0"), ({"dimension": 0}, "dimension=0")])
def test_impossible_inputs_is_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        replace(KNOWN, **change)


def test_a_target_no_bound_reaches_is_refused():
    with pytest.raises(ConfigError, match="choose a higher target"):
        plan_from_theory(KNOWN, SETTINGS[:1], target=1e-17, cost_model=fedpaq.CostModel.from_ratio(1))


def test_a_quantizer_without_levels_is_charged_for_a_real_payload():
    bucketed = RoundSetting(1, 5, LowPrecision(1, bucket_size=10))
    (found,) = plan_from_theory(KNOWN, [bucketed], target=0.1, cost_model=PAID, batch_size=10)
    uploading = found.seconds / found.rounds - PAID.expected_computation_seconds(5, 10)
    payload = uploading * 100.0 / (8 * 5)
    assert payload == pytest.approx(round(payload)) and 40 < payload < 100  # ten norms, and levels for 100
    assert found.to_dict()["setting"]["quantizer"] == "low-precision:1,bucket_size=10"


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 10**15))
def test_the_least_round_is_found_wherever_it_is(threshold):
    asked = []
    assert _least(lambda n: asked.append(n) or n >= threshold) == threshold
    assert len(asked) <= 2 * threshold.bit_length() + 2


def test_a_target_that_no_round_reaches_is_named():
    with pytest.raises(ConfigError, match=r"stays above the target for 1e\+15 rounds"):
        _least(lambda n: False)


def test_guarantees_are_sorted_and_cost_their_rounds():
    known = TheoryInputs(
        assumptions=Assumptions(smoothness=2.0, gradient_variance=1.0, strong_convexity=0.5),
        start=4.0,
        dimension=50,
        num_clients=20,
    )
    all_settings = space_of((1, 4), (5, 20), (1, None), (1.0,)).settings()
    found = plan_from_theory(known, all_settings, target=0.1, cost_model=PAID, batch_size=5)
    assert {guarantee.setting for guarantee in found} == set(all_settings)
    assert [g.seconds for g in found] == sorted(g.seconds for g in found)
    for guarantee in found:
        bits = guarantee.setting.clients_per_round * fedpaq.codec.message_bits(
            50, guarantee.setting.levels or None, accounting="elias"
        )
        each = (
            PAID.expected_computation_seconds(guarantee.setting.clients_per_round, guarantee.setting.local_steps * 5)
            + bits / 100.0
        )
        assert guarantee.seconds == pytest.approx(guarantee.rounds * each)
    slower = plan_from_theory(known, all_settings, target=0.01, cost_model=PAID, batch_size=5)
    rounds = {guarantee.setting: guarantee.rounds for guarantee in found}
    assert all(guarantee.rounds > rounds[guarantee.setting] for guarantee in slower)
