"""FedPAQConfig and its two checks: every value that passes runs, every other is refused by name and remedy."""

from __future__ import annotations

import itertools
import json
import math
import operator
import re
import sys
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedpaq
from fedpaq.config import (
    STEP_SIZES,
    FedPAQConfig,
    WarmupCosine,
    require_int,
    require_positive,
    require_same_shape,
    round_to_4_digits,
)
from fedpaq.errors import ConfigError
from fedpaq.problems import synthetic_quadratic

QUICK = settings(max_examples=50, deadline=None)
FORM = re.compile(r"^[\w()=]+=.+; .*choose .+", re.DOTALL)


def make(**changes):
    values = {"clients_per_round": 2, "local_steps": 3, "total_steps": 6, "step_size": 0.1}
    return FedPAQConfig(**{**values, **changes})


def refusal(call, *arguments, **named):
    with pytest.raises(ConfigError) as caught:
        call(*arguments, **named)
    return str(caught.value)


@QUICK
@given(st.integers(), st.integers(), st.none() | st.integers())
def test_an_integer_passes_exactly_where_it_lies_in_the_range(value, low, high):
    inside = low <= value and (high is None or value <= high)
    if inside:
        require_int("n", value, low, high)
    else:
        said = refusal(require_int, "n", value, low, high)
        assert said.startswith(f"n={value} is out of range; choose ")
        assert f"{low}.." in said if high is not None else f">= {low}" in said


NO_INTEGERS = [
    True,
    1.0,
    "3",
    None,
    Fraction(2),
    np.float64(2),
    np.array([1, 2]),
    np.array(1.5),
    np.zeros(0, np.int64),
    torch.tensor(1.5),
    torch.tensor([1, 2]),
]


@pytest.mark.parametrize("value", NO_INTEGERS, ids=lambda value: f"{type(value).__name__} {value}")
def test_what_is_no_integer_is_refused_with_its_repr(value):
    said = refusal(require_int, "levels", value, 1, 9)
    assert said == f"levels={value!r} is not an integer; choose 1..9"


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int64, np.uint64, np.array, torch.tensor])
def test_whatever_python_can_index_with_is_an_integer(kind):
    require_int("n", kind(7), 7, 7)
    assert refusal(require_int, "n", kind(8), 1, 7) == "n=8 is out of range; choose 1..7"


@QUICK
@given(st.floats() | st.integers(-(10**320), 10**320), st.booleans())
def test_a_number_passes_exactly_where_it_is_finite_and_positive(value, zero_allowed):
    as_fraction = None if isinstance(value, float) and not math.isfinite(value) else Fraction(value)
    largest = Fraction(sys.float_info.max)
    fits = as_fraction is not None and 0 <= as_fraction <= largest and (zero_allowed or as_fraction > 0)
    if fits:
        require_positive("eta", value, zero_allowed=zero_allowed)
    else:
        said = refusal(require_positive, "eta", value, zero_allowed=zero_allowed)
        assert said.endswith(f"choose a finite number {'>= 0' if zero_allowed else '> 0'}")


@pytest.mark.parametrize("value", [True, "1", None, 1j, [1.0], np.array(1.0), np.array([1.0])])
def test_what_is_no_number_is_refused(value):
    assert refusal(require_positive, "eta", value) == (f"eta={value!r} is not a number; choose a finite number > 0")


@QUICK
@given(st.integers(1, 10**40), st.integers(1, 10**6))
def test_steps_that_are_no_whole_rounds_name_the_next_multiple(total, tau):
    if total % tau == 0:
        assert make(local_steps=tau, total_steps=total).num_rounds * tau == total
        return
    said = refusal(make, local_steps=tau, total_steps=total)
    named = int(said.rsplit(" ", 1)[1])
    assert total < named < total + tau and named % tau == 0
    assert make(local_steps=tau, total_steps=named).num_rounds == total // tau + 1


def test_steps_beyond_any_double_are_refused_like_others():
    assert "is not a multiple of local_steps=3" in refusal(make, total_steps=10**400)


@pytest.mark.parametrize("name", ["clients_per_round", "local_steps", "total_steps", "batch_size", "seed"])
def test_every_count_is_refused_by_its_own_name(name):
    for value in (-1, 1.5, True, "2"):
        assert refusal(make, **{name: value}).startswith(f"{name}={value!r}")
    assert FORM.match(refusal(make, **{name: -1}))


def test_none_is_allowed_for_the_batch_only():
    assert make(batch_size=None).batch_size is None
    for name in ("clients_per_round", "local_steps", "total_steps", "seed", "step_size"):
        assert f"{name}=None is not" in refusal(make, **{name: None})


def test_seeds_are_those_of_sixty_four_bits():
    assert make(seed=2**64 - 1).seed == 2**64 - 1
    assert refusal(make, seed=2**64) == f"seed={2**64} is out of range; choose 0..{2**64 - 1}"


COUNTS = {"clients_per_round": 2, "local_steps": 100, "total_steps": 200, "batch_size": 3, "seed": 5}


@pytest.mark.parametrize("kind", [np.uint8, np.int64, np.uint64, torch.tensor])
def test_integers_of_numpy_become_pythons_own(kind):
    config = make(**{name: kind(value) for name, value in COUNTS.items()})
    assert config == make(**COUNTS) and hash(config) == hash(make(**COUNTS))
    assert all(type(getattr(config, name)) is int for name in COUNTS)
    plain = {"step_size": 0.1, "optimizer": "sgd", "precision": "float32"}
    assert json.loads(json.dumps(config.to_dict())) == {**COUNTS, **plain}


def test_a_run_with_integers_of_numpy_is_the_run_with_pythons():
    problem = synthetic_quadratic(num_clients=3, dimension=2)
    small = {name: np.uint8(value) for name, value in COUNTS.items()}  # 2 * 100 * 3 does not fit a byte
    one, other = (
        fedpaq.train(problem, make(**counts, step_size=0.01), executor="sequential", evaluate_every=0)
        for counts in (small, COUNTS)
    )
    assert one.to_json() == other.to_json()


def test_a_config_becomes_the_json_it_is_made_from():
    config = make(batch_size=None, seed=2**63)
    assert FedPAQConfig(**json.loads(json.dumps(config.to_dict()))) == config


def test_a_schedule_is_named_in_json_and_asked_round_by_round():
    def halving(round):
        return 2.0**-round

    config = make(step_size=halving)
    assert [config.step_size_at(round) for round in range(4)] == [1.0, 0.5, 0.25, 0.125]
    assert config.to_dict()["step_size"] == repr(halving)
    assert make(step_size=2).step_size_at(99) == 2.0 and type(make(step_size=2).step_size_at(0)) is float


@pytest.mark.parametrize("value", [0, -0.5, math.nan, math.inf, "0.1", None, True])
def test_a_schedule_that_returns_no_step_size_says_in_which_round(value):
    said = refusal(make(step_size=lambda _: value).step_size_at, 7)
    assert said.startswith(f"step_size(round=7)={value!r} is not")


def test_a_frozen_config_cannot_be_changed():
    with pytest.raises(AttributeError):
        make().seed = 3


@QUICK
@given(st.integers(1, 50), st.integers(1, 50))
def test_a_round_needs_as_many_clients_as_it_asks(r, n):
    config = make(clients_per_round=r)
    if r <= n:
        config.check_against(n)
    else:
        said = refusal(config.check_against, n)
        assert said.startswith(f"clients_per_round={r} exceeds num_clients={n};") and said.endswith(f"1..{n}")


@pytest.mark.parametrize("name", ["clients_per_round", "local_steps", "total_steps", "batch_size"])
def test_a_batch_of_runs_shares_its_shape(name):
    first, second = make(), make(**{name: 6 if name != "total_steps" else 12})
    if name == "local_steps":
        assert second.num_rounds == 1
    said = refusal(require_same_shape, [first, second, first])
    assert said.startswith(f"{name} takes 2 values in one sweep; only step_size and seed may differ")


def test_a_batch_of_runs_may_differ_in_step_size_and_seed():
    configs = [make(seed=seed, step_size=eta) for seed, eta in [(0, 0.1), (1, 0.2), (2, math.sqrt)]]
    assert require_same_shape(configs) is configs[0]
    assert refusal(require_same_shape, []) == "configs=[] is empty; a sweep needs at least one config"


def test_an_index_that_fails_is_told_as_no_integer():
    class Broken:
        def __index__(self):
            raise TypeError("not today")

        def __repr__(self):
            return "Broken()"

    with pytest.raises(TypeError):
        operator.index(Broken())
    assert refusal(make, seed=Broken()).startswith("seed=Broken() is not an integer; choose 0..")


@settings(max_examples=50, deadline=None)
@given(st.floats(1e-12, 1e12))
def test_rounding_keeps_four_digits_and_happens_once(step_size):
    assert round_to_4_digits(step_size) == pytest.approx(step_size, rel=5e-4) and round_to_4_digits(
        round_to_4_digits(step_size)
    ) == round_to_4_digits(step_size)
    assert len(Decimal(repr(round_to_4_digits(step_size))).normalize().as_tuple().digits) <= 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("adam", "unknown optimizer 'adam'; known: sgd, momentum, adamw .*did you mean 'adamw'"),
        ("sgd:0.1", "optimizer='sgd:0.1' cannot be read; choose 'sgd'"),
        ("momentum:1", "optimizer='momentum:1' cannot be read; choose 'momentum' or 'momentum:x' with 0 <= x < 1"),
        ("adamw:nan", "optimizer='adamw:nan' cannot be read"),
        ("adamw:much", "optimizer='adamw:much' cannot be read"),
        (None, "unknown optimizer 'None'"),
    ],
)
def test_an_optimizer_that_cannot_be_read_is_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        make(optimizer=text)


def test_a_precision_that_nothing_computes_in_is_refused():
    with pytest.raises(ConfigError, match="unknown precision 'float16'; known: float32, bfloat16"):
        make(precision="float16")


def test_the_configs_of_a_sweep_share_optimizer_and_precision():
    for change in ({"optimizer": "adamw"}, {"precision": "bfloat16"}):
        with pytest.raises(ConfigError, match=f"{next(iter(change))} takes 2 values"):
            require_same_shape([make(), make(**change)])


def test_warm_up_and_cosine_stay_between_last_and_peak_and_serve_as_a_step_size():
    schedule = WarmupCosine(peak=0.2, rounds=40, warmup=4, last=0.01)
    values = [schedule(k) for k in range(40)]
    assert values[:5] == pytest.approx([0.05, 0.1, 0.15, 0.2, 0.2])
    assert all(a > b for a, b in itertools.pairwise(values[4:])) and 0.01 < values[-1] < 0.012
    assert make(step_size=schedule).step_size_at(3) == pytest.approx(0.2)
    assert make(step_size=schedule).to_dict()["step_size"] == repr(schedule)
    for wrong in ({"peak": 0.0}, {"rounds": 0}, {"warmup": 40}, {"last": -0.1}):
        with pytest.raises(ConfigError):
            WarmupCosine(**{"peak": 0.2, "rounds": 40, **wrong})


@pytest.mark.parametrize("value", [1e39, 3.5e38, 1e-38, 1e-50, 5e-324])
def test_a_step_size_that_float32_cannot_hold_is_refused_however_it_comes(value):
    said = f"step_size={value} is beyond float32, which params are; choose 1.2e-38..3.4e+38"
    assert refusal(make, step_size=value) == said
    assert refusal(make(step_size=lambda _: value).step_size_at, 7) == said.replace("size=", "size(round=7)=")
    assert refusal(WarmupCosine, peak=value, rounds=3) == said.replace("step_size=", "peak=")


def test_the_largest_and_the_least_step_size_are_taken():
    for value in STEP_SIZES:
        assert make(step_size=value).step_size == float(np.float32(value)) == value


def test_a_schedule_shorter_than_the_run_ends_above_zero_or_is_refused():
    shape = {"local_steps": 2, "total_steps": 12}
    assert refusal(make, **shape, step_size=WarmupCosine(peak=0.1, rounds=4)).endswith(
        "is 0 from round 4 on, and the run has 6; choose rounds=6, or last above 0"
    )
    kept = make(**shape, step_size=WarmupCosine(peak=0.1, rounds=4, last=0.01))
    assert [kept.step_size_at(k) for k in (4, 5)] == pytest.approx([0.01, 0.01])
    for rounds in (6, 60):
        assert make(**shape, step_size=WarmupCosine(peak=0.1, rounds=rounds, warmup=5)).step_size_at(5) > 0
    assert refusal(WarmupCosine, peak=0.1, rounds=4, last=0.2) == "last=0.2 is above peak=0.1; choose 0..0.1"


def test_a_class_is_not_a_schedule():
    assert refusal(make, step_size=WarmupCosine).startswith("step_size=WarmupCosine is a class; pass an instance")


@pytest.mark.parametrize("bad", [None, 0, "x", {}, FedPAQConfig, [None]])
def test_what_is_not_a_config_is_refused_in_a_batch(bad):
    assert refusal(require_same_shape, [make(), bad]).startswith(f"config={bad!r} is not a FedPAQConfig; make one")
