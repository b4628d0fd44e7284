"""A server killed with ``kill -9`` in every phase of a round ends like one that was not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import fedpaq
from repository import TESTS

pytestmark = pytest.mark.flower
PHASES = ("configure", "collect", "aggregate", "save", "evaluate")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("killed")
    paths = [str(Path(fedpaq.__file__).parents[1]), str(TESTS)]
    command = [sys.executable, str(TESTS / "flower" / "killed_server.py"), str(folder), "none", *PHASES]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return {phase: json.loads((folder / f"{phase}.json").read_text()) for phase in ("none", *PHASES)}


def test_the_uninterrupted_run_has_a_schedule_and_evaluates_every_round(found):
    whole = found["none"]
    assert [values["lr"] for values in whole["train"].values()] == pytest.approx([0.4, 0.2, 0.2, 0.1, 0.1])
    assert list(whole["clients"]) == ["1", "2", "3", "4", "5"] and list(whole["server"]) == ["0", *whole["clients"]]
    assert [row["round"] for row in whole["rows"]] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("phase", PHASES)
def test_killed_in_any_phase_the_run_ends_with_the_same_model_metrics_evaluations_and_rows(found, phase):
    assert found[phase] == found["none"]
