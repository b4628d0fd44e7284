"""Search spaces: every combination once, quantizers as objects, texts or levels, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpaq.errors import ConfigError
from fedpaq.planner import SearchSpace
from fedpaq.planner.search_space import default_cohorts
from fedpaq.quantizers import Identity, LowPrecision
from small_plans import space_of

QUICK = settings(max_examples=50, deadline=None)


def test_settings_are_every_combination_once():
    space = space_of((1, 5), (2, 4, 8), (1, None), (0.1,))
    all_settings = space.settings()
    assert len(all_settings) == len(set(all_settings)) == 12
    assert {(s.local_steps, s.clients_per_round, s.levels) for s in all_settings} == {
        (tau, r, s) for tau in (1, 5) for r in (2, 4, 8) for s in (1, 0)
    }
    assert all_settings == space.settings()


def test_quantizers_are_given_as_objects_as_texts_or_by_their_levels():
    space = SearchSpace(
        local_steps=(1,),
        clients_per_round=(2,),
        quantizers=(LowPrecision(3), "low-precision:4,bucket_size=128", "none"),
        levels=(7,),
        step_sizes=(0.1,),
    )
    bucketed = LowPrecision(4, bucket_size=128)
    assert [setting.quantizer for setting in space.settings()] == [
        LowPrecision(3),
        bucketed,
        Identity(),
        LowPrecision(7),
    ]


@pytest.mark.parametrize(
    ("quantizers", "levels", "why"),
    [
        ((), (), r"quantizers=\[\] is empty"),
        (("low-precision:4",), (4,), r"quantizers=\['low-precision:4', 'low-precision:4'\] is empty or repeats"),
        (("low-precison:4",), (), "did you mean 'low-precision'"),
    ],
)
def test_missing_repeated_and_unknown_quantizers_are_refused(quantizers, levels, why):
    with pytest.raises(ConfigError, match=why):
        SearchSpace(local_steps=(1,), clients_per_round=(2,), quantizers=quantizers, levels=levels, step_sizes=(0.1,))


@QUICK
@given(st.integers(1, 10**6))
def test_default_cohorts_ascend_from_one_to_all(max_clients):
    cohorts = default_cohorts(max_clients)
    assert cohorts == sorted(set(cohorts)) and cohorts[0] >= 1 and cohorts[-1] == max_clients
    for share, cohort in zip((0.1, 0.2, 0.5, 1.0), cohorts, strict=False):
        assert len(cohorts) < 4 or abs(cohort - share * max_clients) <= 0.5


BAD_SPACES = {
    "nothing": (((), (1,), (1,), (0.1,)), r"local_steps=\[\] is empty"),
    "twice": (
        ((1, 1), (1,), (1,), (0.1,)),
        r"local_steps=\[1, 1\] is empty or repeats a value; give at least one, each once",
    ),
    "no clients": (((1,), (0,), (1,), (0.1,)), "clients_per_round=0 is out of range; choose an integer >= 1"),
    "half a step": (((0.5,), (1,), (1,), (0.1,)), "local_steps=0.5 is not an integer"),
    "no step size": (((1,), (1,), (1,), (0.0,)), "step_sizes=0.0 is not allowed; choose a finite number > 0"),
    "no level": (((1,), (1,), (0,), (0.1,)), "levels=0"),
}


@pytest.mark.parametrize(("choices", "why"), BAD_SPACES.values(), ids=BAD_SPACES)
def test_a_space_without_choices_is_refused_by_name(choices, why):
    with pytest.raises(ConfigError, match=why):
        space_of(*choices)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (((), (2,), (1,), (0.1,)), "local_steps="),
        (((1, 1), (2,), (1,), (0.1,)), "each once"),
        (((1,), (0,), (1,), (0.1,)), "clients_per_round=0"),
        (((1,), (2,), (0,), (0.1,)), "levels=0"),
        (((1,), (2,), (1,), (-0.1,)), "step_sizes=-0.1"),
    ],
)
def test_an_impossible_search_space_is_refused(space, message):
    with pytest.raises(ConfigError, match=message):
        space_of(*space)


CHOICES = {"local_steps": [1], "clients_per_round": [2], "levels": [1], "step_sizes": [0.1]}


@pytest.mark.parametrize("name", [*CHOICES, "quantizers", "downlinks"])
@pytest.mark.parametrize("bad", [None, 3, True, 0.5, "none", object], ids=str)
def test_what_is_not_a_list_of_choices_is_refused_by_name(name, bad):
    with pytest.raises(ConfigError, match=rf"^{name}=.* is not a list; write \[...\], also around a single choice"):
        SearchSpace(**{**CHOICES, name: bad})


@pytest.mark.parametrize("bad", [[[1]], [np.ones(2)], [None], ["1"], [True]], ids=str)
@pytest.mark.parametrize("name", ["local_steps", "clients_per_round", "step_sizes"])
def test_a_choice_that_is_not_a_number_is_refused_by_name(name, bad):
    with pytest.raises(ConfigError, match=rf"^{name}=.* is not a"):
        SearchSpace(**{**CHOICES, name: bad})


def test_choices_may_come_from_an_iterator_an_array_or_a_range():
    """An iterator is read once and kept: settings would find it empty."""
    expected = SearchSpace(**{**CHOICES, "local_steps": [1, 2]})
    for steps in (iter([1, 2]), np.array([1, 2]), range(1, 3)):
        space = SearchSpace(**{**CHOICES, "local_steps": steps})
        assert space == expected and space.settings() == expected.settings()
        assert all(type(value) is int for value in space.local_steps)
