"""docs/theory.md: its code prints what it says, its figures and its table exist."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path

import numpy as np

from fedpaq.theory.verification import Check
from repository import ROOT

DOCS = ROOT / "docs"
PAGE = (DOCS / "theory.md").read_text()


def test_the_example_prints_what_it_says():
    code, output = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)[0]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "theory.md", "exec"), {})
    assert printed.getvalue() == output


def test_every_figure_is_there():
    figures = re.findall(r"!\[[^]]*\]\(([^)]+)\)", PAGE)
    assert len(figures) >= 4
    for figure in figures:
        assert (DOCS / figure).exists(), figure


def test_the_stored_checks_hold_and_fill_the_table():
    results = json.loads((DOCS / "figures" / "theory" / "results.json").read_text())
    assert len(results) >= 8
    for result in results.values():
        check = Check.from_dict(result)
        assert [bound.verdict for bound in check.bounds] == ["holds"] * 3
        (row,) = [line for line in PAGE.splitlines() if f"| {check.problem}: {result['title']} |" in line]
        silent = sum(bool(np.isnan(bound.values).any()) for bound in check.bounds) if check.theorem == 2 else 0
        assert row.count("silent at") == silent  # where a theorem says nothing, the table says so
    seeds = [result["setting"]["num_seeds"] for result in results.values() if result["theorem"] == 1]
    assert min(seeds) >= 50


def test_every_erratum_named_by_a_test_is_on_its_page():
    tests = (Path(__file__).parent / "test_paper_errata.py").read_text()
    errata = (DOCS / "paper-errata.md").read_text()
    for number in set(re.findall(r"def test_([abc]\d+)_", tests)):
        assert f"**{number.upper()}." in errata
