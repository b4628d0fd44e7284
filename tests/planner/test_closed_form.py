"""A plan from the bounds alone: rounds that just suffice, and orders that make sense."""

from __future__ import annotations

from dataclasses import replace

import pytest

import fedpaq
from fedpaq.errors import ConfigError
from fedpaq.planner import RoundSetting
from fedpaq.planner.closed_form import TheoryInputs, plan_from_theory, rounds_needed
from fedpaq.theory import Assumptions, NonConvexBound, StronglyConvexBound

KNOWN = TheoryInputs(
    assumptions=Assumptions(smoothness=4.0, strong_convexity=1.0, gradient_variance=10.0),
    start=5.0,
    dimension=100,
    num_clients=20,
)
SHAPES = [RoundSetting(tau, r, s) for tau in (1, 5) for r in (5, 20) for s in (1, 10, 0)]


def test_rounds_just_suffice_for_theorem_1():
    setting = RoundSetting(5, 5, 10)
    rounds = rounds_needed(KNOWN, setting, 0.1, 10)
    bound = StronglyConvexBound(
        assumptions=replace(KNOWN.assumptions, variance_bound=setting.quantizer.variance_bound(100)),
        num_clients=20,
        clients_per_round=5,
        local_steps=5,
        batch_size=10,
        variant="corrected",
    )
    k0 = bound.first_round
    assert 2.0 * bound.at(k0 + rounds, 5.0) <= 0.1 < 2.0 * bound.at(k0 + rounds - 1, 5.0)


def test_rounds_just_suffice_for_theorem_2():
    smooth = replace(KNOWN, assumptions=replace(KNOWN.assumptions, strong_convexity=None))
    rounds = rounds_needed(smooth, RoundSetting(2, 20, 0), 0.05, 10)
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
        plan_from_theory(KNOWN, SHAPES, target=0.1, cost_model=fedpaq.CostModel.from_ratio(ratio))
        for ratio in (10_000, 0.001)
    )
    assert slow == sorted(slow, key=lambda guarantee: guarantee.seconds)
    assert slow[0].setting.levels > 0
    assert fast[0].setting.levels == 0


def test_a_stricter_target_takes_longer():
    model = fedpaq.CostModel.from_ratio(100)
    loose, strict = (
        plan_from_theory(KNOWN, SHAPES[:1], target=target, cost_model=model)[0] for target in (1.0, 0.01)
    )
    assert strict.rounds > loose.rounds


@pytest.mark.parametrize(
    ("change", "message"), [({"start": 0.0}, "start=0"), ({"dimension": 0}, "dimension=0")]
)
def test_impossible_knowledge_is_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        replace(KNOWN, **change)


def test_a_target_no_bound_reaches_is_refused():
    with pytest.raises(ConfigError, match="aim higher"):
        plan_from_theory(KNOWN, SHAPES[:1], target=1e-17, cost_model=fedpaq.CostModel.from_ratio(1))
