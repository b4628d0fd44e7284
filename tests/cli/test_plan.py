"""fedpaq plan: tables, JSON, the closed form, and what it refuses."""

from __future__ import annotations

import json
import re
import shlex

import pytest
import typer
from typer.testing import CliRunner

from command_line import fedpaq_main
from fedpaq.cli.plan import counted, plan
from fedpaq.errors import ConfigError

app = typer.Typer()
app.command()(plan)
QUICK = ["synthetic-quadratic", "-n", "4", "--target-loss", "40", "--no-compare"]


def test_a_table_recommends_a_configuration_in_human_units():
    result = CliRunner().invoke(app, [*QUICK, "--bandwidth", "100kbit/s"], env={"COLUMNS": "100"})
    assert result.exit_code == 0, result.output
    assert "pick" in result.output and "on average" in result.output
    assert "per round, each for" in result.output
    assert "fresh runs are at the target then (level held)" in result.output.replace("\n", " ")
    assert result.output.splitlines()[-1].startswith("fedpaq run synthetic-quadratic -n 4 -r ")


def test_the_last_line_is_the_run_that_was_planned():
    """Parsed and run as it stands, with the seconds that the plan's cost model gives it."""
    words = [*QUICK, "--bandwidth", "100kbit/s", "--downlink-bandwidth", "1Mbit/s", "--round-seconds", "2"]
    words += ["--slow-share", "0.5", "--slow-factor", "3", "--own-uplinks", "--broadcast", "--json"]
    values = json.loads(CliRunner().invoke(app, words).stdout)
    fedpaq, run, *rest = shlex.split(values["command"])
    assert (fedpaq, run) == ("fedpaq", "run")
    ended = fedpaq_main("run", *rest, "--no-compare", "--json")
    assert ended.code == 0, ended.err
    (found,) = json.loads(ended.out).values()
    assert found["rounds"] == values["schedule"]["rounds"]
    assert found["config"]["step_size"] == values["pick"]["step_size"]
    assert found["seconds"] == pytest.approx(values["schedule"]["seconds"], rel=0.5)  # one run, the mean of 200
    assert found["seconds"] > 2 * found["rounds"]


@pytest.mark.parametrize(("number", "words"), [(1, "1 client"), (2, "2 clients"), (10, "10 clients")])
def test_one_is_not_many(number, words):
    assert counted(number, "client") == words


def test_json_holds_the_pick():
    result = CliRunner().invoke(app, [*QUICK, "--ratio", "100", "--json"])
    assert result.exit_code == 0, result.output
    values = json.loads(result.stdout)
    assert values["target_loss"] == 40.0
    assert values["pick"]["low"] <= values["pick"]["seconds"] <= values["pick"]["high"]


def test_the_quantizers_to_choose_from_can_be_given():
    chosen = ["--quantizer", "low-precision:3,bucket_size=8", "--quantizer", "none"]
    result = CliRunner().invoke(app, [*QUICK, "--ratio", "100", *chosen], env={"COLUMNS": "140"})
    assert result.exit_code == 0, result.output
    assert "low-precision:3,bucket_size=8" in result.output
    result = CliRunner().invoke(app, [*QUICK, "--ratio", "100", "--quantizer", "low-precison:3"])
    assert "did you mean 'low-precision'" in str(result.exception)


def test_times_without_seconds_are_gradient_times():
    result = CliRunner().invoke(app, [*QUICK, "--ratio", "100", "--straggler", "0.407"], env={"COLUMNS": "400"})
    assert result.exit_code == 0, result.output
    assert re.search(r"Means of 48 runs .* in gradient times;", result.output)
    assert re.search(r"nine in ten runs take [\d,]+ to [\d,]+ gradient times\.", result.output)
    assert re.search(r"Schedule \d+ rounds?, [\d,]+ gradient times:", result.output)


@pytest.mark.parametrize(("network", "unit"), [(["--ratio", "9"], "gradient times"), (["--bandwidth", "9"], "seconds")])
def test_the_closed_form_names_its_unit(network, unit):
    arguments = ["synthetic-quadratic", "--target-loss", "60", *network, "--from-theory"]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    assert result.output.splitlines()[1].split()[-len(unit.split()) :] == unit.split()


def test_the_closed_form_says_how_loose_it_is():
    arguments = ["synthetic-quadratic", "--target-loss", "60", "--ratio", "100", "--from-theory"]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    assert "guarantee" in result.output and "above the measured error" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target-loss", "40"], "give exactly one"),
        (["--target-loss", "40", "--bandwidth", "0kbit/s"], "bandwidth=0"),
        (["--target-loss", "40", "--bandwidth", "fast"], "is not a rate"),
        (["--target-loss", "40", "--bandwidth", "1kbit/s", "--straggler", "2"], "straggler=2"),
        (["--target-loss", "40", "--ratio", "1", "--max-clients", "60"], "max_clients=60 exceeds num_clients=50"),
        (["--target-loss", "0.001", "--ratio", "1"], "the lowest training loss"),
        (["--target-loss", "0.001", "--ratio", "1", "--from-theory"], "is below the lowest training loss"),
    ],
)
def test_bad_input_is_a_clear_message(arguments, message):
    result = CliRunner().invoke(app, ["synthetic-quadratic", *arguments])
    assert isinstance(result.exception, ConfigError)
    assert message in str(result.exception)
