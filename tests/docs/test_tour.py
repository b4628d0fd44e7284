"""The notebook examples/tour.ipynb runs from top to bottom."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import fedpaq
from repository import ROOT

nbformat = pytest.importorskip("nbformat", reason="needs nbclient")
nbclient = pytest.importorskip("nbclient", reason="needs nbclient")


@pytest.mark.filterwarnings("ignore")
def test_the_tour_runs_and_shows_a_table_a_picture_and_a_plan(monkeypatch):
    paths = [str(Path(fedpaq.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    notebook = nbformat.read(ROOT / "examples" / "tour.ipynb", as_version=4)
    nbformat.validate(notebook)
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    printed = "".join(output.get("text", "") for output in outputs)
    for expected in ("rotated(0.5 bits)", "low-precision(s=1)", "local_steps=", "bytes instead of"):
        assert expected in printed
    assert any("image/png" in output.get("data", {}) for output in outputs)
