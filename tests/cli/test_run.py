"""fedpaq run: the table, JSON, files, and errors without tracebacks."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

import fedpaq
from fedpaq.cli import app, main

QUICK = ["run", "mnist-logistic", "--total-steps", "10", "--clients-per-round", "5"]


def fedpaq_command(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "fedpaq", *arguments], capture_output=True, text=True, timeout=120, check=False
    )


def test_the_summary_compares_fedpaq_with_fedavg_within_80_columns():
    result = CliRunner().invoke(app, QUICK, env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    assert "FedPAQ" in result.output and "FedAvg" in result.output
    assert "times as many bytes" in result.output
    assert max(len(line) for line in result.output.splitlines()) <= 80


def test_json_equals_the_library(tmp_path):
    saved = tmp_path / "run.json"
    result = CliRunner().invoke(app, [*QUICK, "--json", "--output", str(saved)])
    values = json.loads(result.stdout)
    assert set(values) == {"FedPAQ", "FedAvg"}
    config = fedpaq.FedPAQConfig(clients_per_round=5, local_steps=5, total_steps=10, step_size=0.5)
    problem = fedpaq.problems.load("mnist-logistic")
    history = fedpaq.train(problem, config, quantizer=fedpaq.LowPrecision(levels=1))
    assert values["FedPAQ"]["loss"] == history.final.loss
    assert values["FedPAQ"]["payload_bytes"] == history.final.payload_bytes
    assert fedpaq.History.load(saved).to_json() == history.to_json()


@pytest.mark.parametrize(
    ("accounting", "shown"), [("payload", "uploads and"), ("elias", "uploads (counted as elias) and")]
)
def test_bits_that_are_not_those_of_the_upload_column_are_named(accounting, shown):
    result = CliRunner().invoke(app, [*QUICK, "--no-compare", "--accounting", accounting], env={"COLUMNS": "120"})
    assert f"Time is modelled: {shown} the slowest client" in result.output


@pytest.mark.parametrize(
    ("short", "text"),
    [
        ([], "low-precision:1"),
        (["--levels", "5"], "low-precision:5"),
        (["--levels", "5", "--bucket-size", "100"], "low-precision:5,bucket_size=100"),
        (["--levels", "0"], "none"),
    ],
)
def test_levels_are_short_for_a_quantizer(short, text):
    one, other = (CliRunner().invoke(app, [*QUICK, "--json", *more]) for more in (short, ["--quantizer", text]))
    assert one.exit_code == 0 and one.stdout == other.stdout
    assert set(json.loads(one.stdout)) == ({"FedAvg"} if text == "none" else {"FedPAQ", "FedAvg"})


@dataclasses.dataclass(frozen=True)
class Halved(fedpaq.Identity):
    """A quantizer from elsewhere, with a name of its own."""

    name = "halved"


def test_any_registered_quantizer_is_compared_with_fedavg(monkeypatch):
    monkeypatch.setitem(fedpaq.quantizers.registry.QUANTIZERS, "halved", Halved)
    result = CliRunner().invoke(app, [*QUICK, "--quantizer", "halved"], env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    rows = [line.split()[0] for line in result.output.splitlines()[3:5]]
    assert rows == ["halved", "none"]
    assert "FedAvg uploads 1 times as many bytes and takes 1 times as long." in result.output


@dataclasses.dataclass(frozen=True)
class Silent(fedpaq.Identity):
    """A quantizer that sends zeros, with which no step size is too large."""

    name = "silent"

    def quantize_batch(self, updates, keys):
        return super().quantize_batch(np.zeros_like(updates), keys)


@pytest.fixture
def diverging(monkeypatch):
    """A run that ends well, beside a FedAvg that does not."""
    monkeypatch.setitem(fedpaq.quantizers.registry.QUANTIZERS, "silent", Silent)
    return [*QUICK, "--quantizer", "silent", "--step-size", "1e30", "-t", "1"]


def test_a_comparison_that_diverges_is_a_row_of_the_table(diverging):
    ended = CliRunner().invoke(app, diverging, env={"COLUMNS": "80"})
    assert ended.exit_code == 0, ended.output
    rows = [line.split() for line in ended.output.splitlines()[3:5]]
    assert rows[0][:2] == ["silent", "0.6931"] and rows[1][:4] == ["none", "(FedAvg)", "diverged", "-"]
    assert "FedAvg diverged in round=2: " in ended.output and "times as long" not in ended.output
    values = json.loads(CliRunner().invoke(app, [*diverging, "--json"]).stdout)
    assert values["FedPAQ"]["diverged"] is None and "no longer finite" in values["FedAvg"]["diverged"]


@pytest.mark.parametrize("failure", [KeyboardInterrupt, MemoryError])
def test_a_comparison_that_fails_leaves_the_finished_run_on_the_disk(tmp_path, monkeypatch, failure):
    sweep = fedpaq.sweep

    def first_only(*arguments, **settings):
        if settings["quantizer"] == fedpaq.Identity():
            raise failure
        return sweep(*arguments, **settings)

    monkeypatch.setattr(fedpaq, "sweep", first_only)
    ended = CliRunner().invoke(app, [*QUICK, "--output", str(tmp_path / "run.json")])
    assert ended.exit_code != 0
    assert fedpaq.History.load(tmp_path / "run.json").final.round == 2


def test_help_teaches_the_method():
    result = CliRunner().invoke(app, ["run", "--help"], env={"COLUMNS": "100"})
    assert "quantized" in result.output and "Example" in result.output


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["run", "mnist-logistc"], "did you mean 'mnist-logistic'"),
        (["run", "mnist-logistic", "--clients-per-round", "60"], "exceeds num_clients=50"),
        (["run", "mnist-logistic", "--local-steps", "3"], "not a multiple"),
        (["run", "mnist-logistic", "--bandwidth", "fast"], "is not a rate"),
        (["run", "mnist-logistic", "--step-size", "1e30"], "lower step_size"),
    ],
)
def test_errors_are_one_line_and_exit_code_2(arguments, complaint, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["fedpaq", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "preparing" not in line]
    assert len(lines) == 1 and lines[0].startswith("fedpaq: error: ")
    assert complaint in lines[0]


def test_an_error_ends_the_process_with_one_line_and_code_2():
    result = fedpaq_command("run", "mnist-logistc")
    assert result.returncode == 2 and result.stdout == ""
    assert result.stderr.startswith("fedpaq: error: ") and result.stderr.count("\n") == 1


def test_debug_shows_the_traceback():
    result = fedpaq_command("--debug", "run", "mnist-logistc")
    assert "Traceback" in result.stderr and "ConfigError" in result.stderr


def test_a_bandwidth_gives_times_in_human_units():
    result = CliRunner().invoke(app, [*QUICK, "--bandwidth", "1Mbit/s"])
    assert result.exit_code == 0, result.output
    assert " ms" in result.output or " s" in result.output


def test_without_arguments_the_command_lists_its_verbs():
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0
    assert "run" in result.output and "data" in result.output


def test_a_loss_that_rose_is_said():
    result = CliRunner().invoke(app, ["run", "mnist-logistic", "--step-size", "1000", "-t", "20", "--no-compare"])
    assert result.exit_code == 0, result.output
    assert "The loss rose from" in result.output and "smaller --step-size" in result.output
