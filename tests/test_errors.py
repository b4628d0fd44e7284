"""Errors: one tree, each error also a standard one, names that are nearly right are suggested."""

from __future__ import annotations

import inspect

import pytest

from fedpaq import errors
from fedpaq.errors import FedPAQError, unknown_name

EVERY = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, FedPAQError)]


@pytest.mark.parametrize("kind", [kind for kind in EVERY if kind is not FedPAQError])
def test_an_error_is_of_the_tree_and_of_a_standard_kind(kind):
    standard = [base for base in kind.__bases__ if base is not FedPAQError]
    assert kind.__bases__[0] is FedPAQError and len(standard) == 1
    assert standard[0].__module__ == "builtins" and issubclass(standard[0], Exception)
    with pytest.raises(standard[0], match=r"levels=0 is out of range"):
        raise kind("levels=0 is out of range; choose 1..32767")


def test_every_error_is_also_one_of_python_s_own():
    assert {kind.__name__: kind.__bases__[1] for kind in EVERY if kind is not FedPAQError} == {
        "ConfigError": ValueError,
        "WireFormatError": ValueError,
        "NonFiniteUpdateError": ValueError,
        "MissingExtraError": ImportError,
        "DatasetError": OSError,
        "CheckpointError": OSError,
        "DivergedError": ArithmeticError,
        "LostRankError": ConnectionError,
    }


def test_an_unknown_name_lists_the_known_ones_and_suggests_only_what_is_near():
    known = ["identity", "low-precision"]
    assert str(unknown_name("quantizer", "zzz", known)) == "unknown quantizer 'zzz'; known: identity, low-precision"
    assert "(did you mean 'identity'?)" in str(unknown_name("quantizer", "identiti", known))
    assert "did you mean" not in str(unknown_name("quantizer", 7, known))


def test_a_name_of_a_megabyte_is_compared_quickly():
    assert "known: a" in str(unknown_name("method", "x" * 10**6, ["a" * 50]))
