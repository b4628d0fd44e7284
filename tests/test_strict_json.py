"""Strict JSON: what the standard allows, and a ValueError for all else."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpaq.strict_json import loads


@pytest.mark.parametrize(
    "text", ["", "NaN", "-Infinity", "[1e999]", "-1e400", "[" * 100_000, "9" * 5000, b"\xff", "{'a': 1}"]
)
def test_what_is_no_json_is_a_value_error(text):
    with pytest.raises(ValueError):
        loads(text)


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=10,
    )
)
def test_what_json_writes_is_read(value):
    assert loads(json.dumps(value)) == value
