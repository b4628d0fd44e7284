"""docs/performance.md is what its script writes from the stored results."""

from __future__ import annotations

import importlib.util

import pytest

from repository import ROOT


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("performance_page", ROOT / "scripts" / "performance_page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date(script):
    assert script.PAGE.read_text() == script.page(), "run: python scripts/performance_page.py"


def test_every_section_names_a_script_that_exists(script):
    for name in script.SECTIONS:
        assert (ROOT / "benchmarks" / f"{name}.py").exists()


def test_an_aim_that_is_missed_is_said(script):
    assert "| fast | 3 | **no** |" in script.aims([("fast", "3", False)])


@pytest.mark.parametrize(
    ("value", "text"), [(2.5, "2.5 s"), (0.01234, "12.3 ms"), (1.5e-6, "1.5 µs"), (8e-8, "80 ns"), (2500, "2,500 s")]
)
def test_durations_have_a_unit_that_fits(script, value, text):
    assert script.seconds(value) == text


@pytest.mark.parametrize(("value", "text"), [(31, "31 B"), (5980, "5.98 kB"), (1.3e10, "13 GB")])
def test_sizes_have_a_unit_that_fits(script, value, text):
    assert script.size(value) == text


def test_prose_is_broken_into_lines_and_tables_are_not(script):
    prose, row = "seven words " * 20, f"| {'seven words ' * 20}|"
    assert max(map(len, script.wrapped(prose).splitlines())) <= 120
    assert script.wrapped(row) == row
