"""Theorems and cost model as functions: monotone, scaling and symmetric wherever their formulas are."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpaq.cost_model import ACCOUNTINGS, CostModel
from fedpaq.errors import ConfigError
from fedpaq.randomness import Purpose, first_uniforms
from fedpaq.theory import Assumptions, Condition, NonConvexBound, StronglyConvexBound
from fedpaq.theory.assumptions import sampling_variance

QUICK = settings(max_examples=50, deadline=None)
variants = st.sampled_from(["as_stated", "as_derived", "corrected"])
positive = st.floats(0.05, 20)


@st.composite
def settings_of_a_run(draw):
    n = draw(st.integers(1, 30))
    mu = draw(positive)
    return {
        "assumptions": Assumptions(
            smoothness=mu * draw(st.floats(1, 50)),
            strong_convexity=mu,
            gradient_variance=draw(st.floats(0.01, 10)),
            variance_bound=draw(st.floats(0, 5)),
        ),
        "num_clients": n,
        "clients_per_round": draw(st.integers(1, n)),
        "local_steps": draw(st.integers(1, 8)),
        "batch_size": draw(st.integers(1, 9)),
        "variant": draw(variants),
    }


def changed(values, **assumed):
    before = values["assumptions"]
    fields = {name: getattr(before, name) for name in before.__dataclass_fields__}
    return {**values, "assumptions": Assumptions(**{**fields, **assumed})}


@QUICK
@given(settings_of_a_run(), st.floats(1.1, 4))
def test_theorem_1_grows_with_noise_and_quantizer_and_is_linear_in_the_noise(values, factor):
    bound = StronglyConvexBound(**values)
    known = values["assumptions"]
    noisier = StronglyConvexBound(**changed(values, gradient_variance=factor * known.gradient_variance))
    for name in ("c1", "c2", "c3"):
        assert getattr(noisier, name) == pytest.approx(factor * getattr(bound, name))
    coarser = StronglyConvexBound(**changed(values, variance_bound=known.variance_bound + factor))
    assert coarser.b1 > bound.b1 and coarser.c1 > bound.c1 and coarser.c3 > bound.c3
    assert coarser.first_round >= bound.first_round
    batched = StronglyConvexBound(**{**values, "batch_size": 2 * values["batch_size"]})
    assert batched.c1 == pytest.approx(bound.c1 / 2) and batched.first_round == bound.first_round


@QUICK
@given(settings_of_a_run(), st.floats(0.01, 100))
def test_theorem_1_falls_from_round_to_round_and_begins_above_the_start(values, start):
    bound = StronglyConvexBound(**values)
    k0 = bound.first_round
    rounds = [k0, k0 + 1, k0 + 7, 3 * k0]
    at = [bound.at(k, start) for k in rounds]
    assert at == sorted(at, reverse=True) and at[0] >= start
    terms = bound.terms_at(k0, start)
    assert terms[0] == start and sum(terms) == at[0] and min(terms) >= 0
    assert (values["local_steps"] > 1) == (terms[2] > 0) == (terms[3] > 0)


@QUICK
@given(settings_of_a_run(), st.integers(2, 6), st.floats(0.1, 10))
def test_more_participants_never_loosen_a_bound(values, more, start):
    n = values["num_clients"]
    larger = {**values, "clients_per_round": min(n, values["clients_per_round"] * more)}
    one, other = (StronglyConvexBound(**each) for each in (values, larger))
    assert other.b1 <= one.b1 and other.c1 <= one.c1 and other.c3 <= one.c3
    few, many = (NonConvexBound(**each, total_steps=10_000) for each in (values, larger))
    assert many.n1 <= few.n1 and many.b2 <= few.b2 and many.largest_local_steps >= few.largest_local_steps
    assert many.at(start) <= few.at(start)


@QUICK
@given(settings_of_a_run(), st.floats(0.1, 10), st.integers(2, 10**6))
def test_theorem_2_is_the_sum_of_terms_with_their_own_powers(values, gap, total):
    bound = NonConvexBound(**values, total_steps=total)
    longer = NonConvexBound(**values, total_steps=4 * total)
    for before, after, fall in zip(bound.terms(gap), longer.terms(gap), (2, 2, 4), strict=True):
        assert after == pytest.approx(before / fall)
    assert bound.terms(2 * gap)[0] == pytest.approx(2 * bound.terms(gap)[0])
    assert bound.terms(0.0)[0] == 0 and bound.at(gap) == sum(bound.terms(gap))
    assert bound.holds == all(condition.left <= condition.right for condition in bound.conditions())
    assert longer.largest_local_steps >= bound.largest_local_steps


@QUICK
@given(settings_of_a_run(), st.floats(0.2, 5))
def test_scaling_the_loss_scales_both_sides_of_theorem_2(values, scale):
    known = values["assumptions"]
    scaled = changed(
        values,
        smoothness=scale * known.smoothness,
        strong_convexity=scale * known.strong_convexity,
        gradient_variance=scale**2 * known.gradient_variance,
    )
    one, other = (NonConvexBound(**each, total_steps=900) for each in (values, scaled))
    assert other.at(scale * 3.0) == pytest.approx(scale**2 * one.at(3.0))
    assert other.largest_local_steps == one.largest_local_steps
    assert other.step_size(0) == pytest.approx(one.step_size(0) / scale)


@QUICK
@given(st.integers(1, 60), st.data())
def test_the_variance_of_a_cohort_falls_to_zero_as_it_grows(n, data):
    r = data.draw(st.integers(1, n))
    variances = [sampling_variance(n, size) for size in range(r, n + 1)]
    assert variances == sorted(variances, reverse=True) and variances[-1] == 0
    assert 0 <= sampling_variance(n, r) <= 1


def test_a_condition_holds_at_equality_and_not_for_nan():
    assert Condition(text="x", left=1.0, right=1.0).holds
    assert not Condition(text="x", left=math.nextafter(1.0, 2.0), right=1.0).holds
    assert not Condition(text="x", left=math.nan, right=1.0).holds


ratios = st.floats(1e-3, 1e6)


@QUICK
@given(ratios, st.integers(1, 10**7), st.floats(0, 10), st.floats(0.1, 10))
def test_a_ratio_is_that_of_an_unquantized_upload_to_a_gradient(ratio, dimension, shift, scale):
    model = CostModel(ratio=ratio, shift=shift, scale=scale)
    upload = model.communication_seconds(32 * dimension, dimension)
    assert upload / (shift + 1 / scale) == pytest.approx(ratio)
    fixed = CostModel(bandwidth=model.bandwidth_for(dimension), shift=shift, scale=scale)
    assert fixed.communication_seconds(999, 1) == model.communication_seconds(999, dimension)
    assert model.communication_seconds(0, dimension) == 0


@QUICK
@given(st.integers(0, 2**64 - 1), st.integers(0, 100), st.lists(st.integers(0, 500), min_size=1, max_size=8))
def test_computing_takes_as_long_as_the_slowest_and_no_one_less_than_the_shift(seed, round, people):
    model = CostModel(bandwidth=1.0, shift=0.25, scale=4.0)
    clients, gradients = np.array(people), 3 + np.arange(len(people))
    alone = [
        model.computation_seconds(seed, round, clients[i : i + 1], gradients[i : i + 1]) for i in range(len(people))
    ]
    assert model.computation_seconds(seed, round, clients, gradients) == max(alone)
    assert all(seconds >= 0.25 * count for seconds, count in zip(alone, gradients, strict=True))
    u = first_uniforms(Purpose.COMPUTE_TIME, np.array([seed], np.uint64), round, clients[:1])[0]
    assert alone[0] == pytest.approx(3 * (0.25 - math.log(u) / 4.0), rel=1e-12)
    for kind in (np.int32, np.uint64, np.int64):  # in any order and of any type
        backwards = model.computation_seconds(seed, round, clients[::-1].astype(kind), gradients[::-1])
        assert backwards == max(alone)
    assert model.computation_seconds(seed, round, clients[::-1], gradients[::-1]) == max(alone)


def test_twice_the_gradients_take_twice_as_long():
    model = CostModel.from_ratio(10)
    clients = np.arange(6)
    once, twice = (model.computation_seconds(3, 1, clients, np.full(6, count)) for count in (40, 80))
    assert twice == pytest.approx(2 * once)


@pytest.mark.parametrize("accounting", ACCOUNTINGS)
def test_a_cost_model_survives_json(accounting):
    for model in (CostModel.from_ratio(7, accounting=accounting), CostModel(bandwidth=3, accounting=accounting)):
        assert CostModel(**json.loads(json.dumps(model.to_dict()))) == model


REFUSED = {
    "no network": ({}, "bandwidth=None and ratio=None: give exactly one"),
    "a bandwidth of nothing": ({"bandwidth": 0.0}, "bandwidth=0.0 is not allowed; choose a finite number > 0"),
    "a ratio of text": ({"ratio": "7"}, "ratio='7' is not a number"),
    "a shift below nothing": ({"ratio": 1.0, "shift": -0.5}, "shift=-0.5 is not allowed; .* >= 0"),
    "a scale of nothing": ({"ratio": 1.0, "scale": 0.0}, "scale=0.0 is not allowed"),
    "a misspelt accounting": (
        {"ratio": 1.0, "accounting": "payloads"},
        r"unknown accounting 'payloads'; known: payload, fixed-width, elias \(did you mean 'payload'\?\)",
    ),
    "a scale beyond doubles": (
        {"ratio": 1.0, "scale": 5e-324},
        "a gradient takes inf s and a float32 upload takes inf s; choose values that keep each within",
    ),
}


@pytest.mark.parametrize(("values", "why"), REFUSED.values(), ids=REFUSED)
def test_an_impossible_network_is_refused_by_name(values, why):
    with pytest.raises(ConfigError, match=why):
        CostModel(**values)
