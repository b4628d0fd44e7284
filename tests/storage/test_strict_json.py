"""Strict JSON: what the standard allows, and a ValueError for all else."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpaq.storage.strict_json import loads


@pytest.mark.parametrize(
    "text", ["", "NaN", "-Infinity", "[1e999]", "-1e400", "[" * 100_000, "9" * 5000, b"\xff", "{'a': 1}"]
)
def test_what_is_no_json_is_a_value_error(text):
    with pytest.raises(ValueError):
        loads(text)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=10,
    )
)
def test_what_json_writes_is_read(value):
    assert loads(json.dumps(value)) == value


WHY = {
    "NaN": "NaN is not allowed",
    '{"a": [-Infinity]}': "-Infinity is not allowed",
    "1e309": "1e309 is beyond a double",
    "[" * 100_000: "it is nested too deeply",
    f"1{'0' * 60}e300": f"1{'0' * 39} is beyond a double",
}


@pytest.mark.parametrize(("text", "why"), WHY.items(), ids=["nan", "infinity", "large", "deep", "long"])
def test_the_error_says_what_is_wrong_and_stays_short(text, why):
    with pytest.raises(ValueError) as caught:
        loads(text)
    assert str(caught.value) == why


def test_numbers_at_the_edge_of_a_double_are_kept():
    assert loads("[1.7976931348623157e308, 5e-324, 1e-999, -0.0]") == [1.7976931348623157e308, 5e-324, 0.0, 0.0]
    assert loads(str(2**64)) == 2**64
    assert loads(b'"\\ud83d\\ude00"') == "\U0001f600"
