"""Printing: strict JSON or tables that all look alike."""

from __future__ import annotations

import json
import math

import pytest

from fedpaq.cli.printing import grouped, line, show, table


@pytest.fixture
def printed(capsys, monkeypatch):
    """Print parts on 40 columns and return the lines, without blanks at their ends."""
    monkeypatch.setenv("COLUMNS", "40")

    def lines(*parts):
        show(None, False, lambda: parts)
        return [text.rstrip() for text in capsys.readouterr().out.splitlines()]

    return lines


def test_json_is_all_that_is_printed_and_the_tables_are_not_made(capsys):
    show({"a": [1, None]}, True, lambda: pytest.fail("not asked for"))
    assert json.loads(capsys.readouterr().out) == {"a": [1, None]}


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_json_is_strict(value):
    with pytest.raises(ValueError, match="JSON compliant"):
        show({"a": value}, True, list)


def test_numbers_stand_to_the_right_and_nothing_is_a_dash(printed):
    made = table(["name", ">count"], [["one", 7], ["three", 123456], ["none", None]])
    assert printed(made) == ["name    count", "─────────────", "one         7", "three  123456", "none        -"]


def test_a_title_is_not_broken_to_the_width_of_a_narrow_table(printed):
    assert printed(table(["a"], [[1]], title="A title of six words here"))[0] == "A title of six words here"


def test_a_table_without_headings_has_no_line_for_them(printed):
    assert printed(table(["", ""], [["a", 1]])) == ["a  1"]


def test_a_group_is_named_once_and_set_apart(printed):
    made = grouped(["", ""], [["x", 1], ["x", 2], ["y", 3]])
    assert printed(made) == ["x  1", "   2", "", "y  3"]


def test_tables_are_set_apart_and_paths_are_never_broken(printed):
    path = "/a/" + 60 * "b"
    lines = printed(table([""], [["one"]]), line(path), table([""], [["two"]]))
    assert lines == ["one", path, "", "two"]
