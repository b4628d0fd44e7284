"""Assumptions: what the constants may be, and how they change with batch and units."""

from __future__ import annotations

import math

import pytest

from fedpaq.errors import ConfigError
from fedpaq.theory import Assumptions, StronglyConvexBound
from fedpaq.theory.assumptions import Theorem, sampling_variance


def test_a_batch_divides_the_gradient_variance():
    one = Assumptions(smoothness=1.0, gradient_variance=30.0)
    assert one.with_batch(10).gradient_variance == 3.0
    assert one.with_batch(1) == one


def test_a_batch_beyond_doubles_is_refused():
    with pytest.raises(ConfigError, match="batch_size=1000"):
        Assumptions(smoothness=1.0, gradient_variance=30.0).with_batch(10**400)


def test_extreme_constants_give_finite_bounds():
    """Every power in the bounds stays a double, and k0 an integer."""
    extreme = Assumptions(smoothness=1e20, strong_convexity=1e-20, gradient_variance=1e20, variance_bound=1e20)
    bound = StronglyConvexBound(
        assumptions=extreme, num_clients=2**32, clients_per_round=1, local_steps=2**53, loss_scale=1e-20
    )
    assert math.isfinite(bound.at(2 * bound.first_round, initial_error=1e20))


def test_a_full_pass_has_no_gradient_noise():
    assert Assumptions(smoothness=1.0, gradient_variance=30.0).with_batch(None).gradient_variance == 0.0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"smoothness": 0.0}, "smoothness=0.0"),
        ({"gradient_variance": -1.0}, "gradient_variance=-1.0"),
        ({"variance_bound": math.nan}, "variance_bound=nan"),
        ({"strong_convexity": 3.0}, "strong_convexity=3.0 exceeds smoothness=2.0"),
        ({"strong_convexity": 0.0}, "strong_convexity=0.0"),
        ({"smoothness": 1e200}, r"smoothness=1e\+200 is out of range; choose 1e-20..1e\+20"),
        ({"strong_convexity": 1e-90}, "strong_convexity=1e-90 is out of range"),
        ({"gradient_variance": 1e90}, r"gradient_variance=1e\+90 is out of range; choose 0..1e\+20"),
    ],
)
def test_impossible_constants_are_refused(values, message):
    with pytest.raises(ConfigError, match=message):
        Assumptions(**{"smoothness": 2.0, "gradient_variance": 1.0} | values)


def test_sampling_variance_is_that_of_a_mean_without_replacement():
    # All 6 pairs out of 4 values: the variance of the pair's mean, over the population's variance.
    values = [1.0, 2.0, 4.0, 9.0]
    mean = sum(values) / 4
    means = [(values[i] + values[j]) / 2 for i in range(4) for j in range(i)]
    spread = sum((value - mean) ** 2 for value in means) / len(means)
    population = sum((value - mean) ** 2 for value in values) / 4
    assert sampling_variance(4, 2) == pytest.approx(spread / population)


def test_sampling_variance_is_zero_when_all_take_part():
    assert sampling_variance(1, 1) == sampling_variance(7, 7) == 0.0


def test_unknown_variant_is_named_with_the_nearest_known_one():
    with pytest.raises(ConfigError, match="did you mean 'as_stated'"):
        Theorem(
            assumptions=Assumptions(smoothness=1.0, gradient_variance=1.0),
            num_clients=4,
            clients_per_round=2,
            local_steps=1,
            variant="as_state",
        )


@pytest.mark.parametrize("clients_per_round", [0, 5])
def test_a_cohort_outside_the_clients_is_refused(clients_per_round):
    with pytest.raises(ConfigError, match="clients_per_round="):
        StronglyConvexBound(
            assumptions=Assumptions(smoothness=2.0, strong_convexity=1.0, gradient_variance=1.0),
            num_clients=4,
            clients_per_round=clients_per_round,
            local_steps=1,
        )
