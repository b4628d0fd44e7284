"""fedpaq run --checkpoint, --resume and --aggregation: files, refusals, the same result."""

from __future__ import annotations

import json
from typing import ClassVar

import pytest
from typer.testing import CliRunner

import fedpaq
from fedpaq.cli import app, main
from fedpaq.errors import CheckpointError, ConfigError
from fedpaq.run import trackers

QUICK = ["run", "mnist-logistic", "--total-steps", "10", "--clients-per-round", "5", "--json"]


def invoke(*more):
    return CliRunner().invoke(app, [*QUICK, *map(str, more)])


def test_a_resumed_command_prints_the_same_and_the_comparison_has_a_file_of_its_own(tmp_path):
    path = tmp_path / "run.ckpt"
    plain, saved, again = invoke(), invoke("--checkpoint", path), invoke("--checkpoint", path, "--resume")
    assert plain.exit_code == saved.exit_code == again.exit_code == 0
    assert json.loads(plain.stdout) == json.loads(saved.stdout) == json.loads(again.stdout)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [
        "run.ckpt",
        "run.ckpt.fedavg",
        "run.ckpt.fedavg.previous",
        "run.ckpt.previous",
    ]


def test_without_resume_an_existing_checkpoint_is_refused(tmp_path):
    invoke("--checkpoint", tmp_path / "run.ckpt", "--no-compare")
    refused = invoke("--checkpoint", tmp_path / "run.ckpt", "--no-compare")
    assert isinstance(refused.exception, CheckpointError) and "pass --resume" in str(refused.exception)


def test_a_forgotten_resume_costs_neither_log_nor_training(tmp_path):
    path, log = tmp_path / "run.ckpt", tmp_path / "run.csv"
    invoke("--checkpoint", path, "--log", log)
    rows = log.read_bytes()
    for file in (path, path.with_name("run.ckpt.previous")):
        refused = invoke("--checkpoint", path, "--log", log)
        assert isinstance(refused.exception, CheckpointError) and rows == log.read_bytes()
        file.unlink()
    refused = invoke("--checkpoint", path, "--log", log)  # only the comparison's is left
    assert "run.ckpt.fedavg' exists" in str(refused.exception)
    assert not path.exists() and rows == log.read_bytes()


class Tracker:
    """Stands for a service: the names that runs were opened under."""

    opened: ClassVar[list] = []

    def __init__(self, project, run):
        self.opened.append((project, run))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def add(self, method, record):
        pass


@pytest.fixture
def opened(monkeypatch):
    monkeypatch.setitem(trackers.SERVICES, "wandb", Tracker)
    monkeypatch.setattr(trackers, "require", lambda *_: None)
    monkeypatch.setattr(Tracker, "opened", [])
    return Tracker.opened


def test_a_resumed_run_goes_on_in_its_own_tracker_run(tmp_path, opened):
    for words in (["a"], ["a", "--resume"], ["b", "--resume"]):
        path, *more = words
        invoke("--checkpoint", tmp_path / path, "--log", "wandb:night", "--no-compare", *more)
    invoke("--log", "wandb:night", "--no-compare")
    (_, first), second, (_, other), alone = opened
    assert second == ("night", first) and other != first
    assert alone == ("night", None)


def test_the_aggregation_is_chosen_by_name(tmp_path):
    done = invoke("--aggregation", "clipped", "--no-compare", "--output", tmp_path / "run.json")
    assert done.exit_code == 0
    assert fedpaq.History.load(tmp_path / "run.json").aggregation == "clipped mean (norm median)"
    assert "did you mean 'trimmed'" in str(invoke("--aggregation", "trimed").exception)


def test_an_output_without_a_folder_is_refused_before_training(tmp_path):
    refused = invoke("--output", tmp_path / "absent" / "run.json")
    assert isinstance(refused.exception, ConfigError) and "create it first" in str(refused.exception)


@pytest.mark.parametrize("option", ["--output", "--checkpoint"])
def test_a_folder_is_refused_as_a_file_before_any_training(option, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["fedpaq", *QUICK, "--no-compare", option, str(tmp_path)])
    with pytest.raises(SystemExit) as end:
        main()
    told = capsys.readouterr().err
    assert end.value.code == 2 and "is a folder; name a file in it" in told and "Traceback" not in told
