"""The security page: every test it names exists, and its table is that of the recorded benchmark."""

from __future__ import annotations

import json
import re
import statistics

import pytest

from repository import ROOT

PAGE = (ROOT / "docs" / "security.md").read_text()
NAMED = sorted(set(re.findall(r"`(test_\w+)`", PAGE)))
RECORDED = sorted(set(re.findall(r"`((?:tests|benchmarks)/[\w/]+\.json)`", PAGE)))


def robust_aggregation_table():
    """Return the page's table from the benchmark's JSON."""
    rows = json.loads((ROOT / "benchmarks" / "results" / "robust_aggregation.json").read_text())["rows"]
    attacks = list(rows[0]["losses"])
    lines = [f"| quantizer | server | {' | '.join(attacks)} |", f"| --- | --- |{' ---: |' * len(attacks)}"]
    for row in rows:
        medians = [statistics.median(values) for values in row["losses"].values()]
        lines.append(f"| {row['quantizer']} | {row['server']} | {' | '.join(f'{m:.4g}' for m in medians)} |")
    return "\n".join(lines)


def test_the_page_makes_many_promises():
    assert len(NAMED) > 30


@pytest.fixture(scope="module")
def names_of_tests():
    """The names of all tests, so that a test may move to another file."""
    texts = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py")]
    return {name for text in texts for name in re.findall(r"^def (test_\w+)\(", text, re.MULTILINE)}


@pytest.mark.parametrize("name", NAMED)
def test_a_test_the_page_names_exists(names_of_tests, name):
    assert name in names_of_tests


@pytest.mark.parametrize("path", RECORDED)
def test_a_record_the_page_names_exists(path):
    assert json.loads((ROOT / path).read_text())


def test_the_table_of_liars_is_the_recorded_one():
    found = re.search(r"<!-- robust-aggregation -->\n(.*?)\n<!-- end -->", PAGE, re.DOTALL)
    assert found is not None and found[1].strip() == robust_aggregation_table()
