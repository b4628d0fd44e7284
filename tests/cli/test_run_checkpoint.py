"""fedpaq run --checkpoint, --resume and --aggregation: files, refusals, the same result."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

import fedpaq
from fedpaq.cli import app, main
from fedpaq.errors import CheckpointError, ConfigError

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


def test_resume_without_a_checkpoint_says_what_is_missing():
    assert isinstance(invoke("--resume").exception, ConfigError)


def test_the_aggregation_is_chosen_by_name(tmp_path):
    done = invoke("--aggregation", "clipped", "--no-compare", "--output", tmp_path / "run.json")
    assert done.exit_code == 0
    assert fedpaq.History.load(tmp_path / "run.json").aggregation == "clipped mean (norm median)"
    assert "did you mean 'trimmed'" in str(invoke("--aggregation", "trimed").exception)


def test_an_output_without_a_folder_is_refused_before_training(tmp_path):
    refused = invoke("--output", tmp_path / "absent" / "run.json")
    assert isinstance(refused.exception, ConfigError) and "create it first" in str(refused.exception)


def test_an_output_that_cannot_be_written_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["fedpaq", *QUICK, "--no-compare", "--output", str(tmp_path)])
    with pytest.raises(SystemExit) as end:
        main()
    told = capsys.readouterr().err
    assert end.value.code == 2 and "Is a directory" in told and "Traceback" not in told
