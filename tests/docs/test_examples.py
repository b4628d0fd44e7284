"""Every example runs, with a small setting, and prints something sensible."""

from __future__ import annotations

import runpy
import sys

import pytest

from repository import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [path.name, "--total-steps", "20"])
    runpy.run_path(str(path), run_name="__main__")
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) >= 3
    assert "nan" not in printed
