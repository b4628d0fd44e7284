"""fedpaq reproduce models: what it runs, says and leaves."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from fedpaq.cli import app
from fedpaq.experiments.models import TASKS
from small_study import SMALL


@pytest.fixture
def small_study():
    """A study of one small task."""
    tasks = dict(TASKS)
    TASKS.clear()
    TASKS["small"] = SMALL
    yield
    TASKS.clear()
    TASKS.update(tasks)


def test_the_study_is_run_once_judged_drawn_and_reported(small_study, tmp_path):
    command = ["reproduce", "models", "-o", str(tmp_path)]
    result = CliRunner().invoke(app, command, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    assert "made for a GPU" in result.stderr and "rounds" in result.stderr
    assert "Rotated 0.03 bits, down 0.2" in result.stdout and "does not hold" in result.stdout
    assert len(list((tmp_path / "models" / "small").glob("*.json"))) == 2 + 6
    for name in ("models-small.png", "models-small.pdf", "models-verdicts.json", "report.html"):
        assert (tmp_path / name).stat().st_size > 500
    (summary,) = json.loads((tmp_path / "models-verdicts.json").read_text())
    assert summary["is_whole"] and len(summary["rows"]) == 3
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    again = CliRunner().invoke(app, [*command, "--json"])
    assert json.loads(again.stdout)["models"] == [summary] and again.stderr == ""
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_piece_says_that_more_is_missing(small_study, tmp_path):
    result = CliRunner().invoke(app, ["reproduce", "models", "-o", str(tmp_path), "--minutes", "0.000001", "-q"])
    assert result.exit_code == 0 and "the same command goes on" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["mnist", "--minutes", "3"], "no effect without models"),
        (["models", "--minutes", "0"], "finite number > 0"),
        (["models", "--round-seconds", "5"], "without prices"),
        (["model"], "models"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, words, tmp_path):
    result = CliRunner().invoke(app, ["reproduce", *arguments, "-o", str(tmp_path / "new")])
    assert result.exit_code != 0 and words in str(result.exception)
    assert not (tmp_path / "new").exists()
