"""fedpaq theory: tables, JSON, plots, and what it refuses."""

from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

from fedpaq.cli.theory import theory
from fedpaq.errors import ConfigError

app = typer.Typer()
app.command()(theory)
QUADRATIC = ["synthetic-quadratic", "-n", "4", "-r", "4", "-t", "2", "-T", "4000", "-s", "0"]


def test_json_holds_constants_conditions_and_bounds_of_each_variant():
    result = CliRunner().invoke(app, [*QUADRATIC, "--json"])
    assert result.exit_code == 0, result.output
    values = json.loads(result.stdout)
    assert values["constants"]["smoothness"] == {"value": 4.0, "certainty": "exact", "source": "known by construction"}
    # k0 = 4 max{4, 4, 1/2, 4*4/2 = 8} = 32 as stated; the proof's own also needs L^2 / (mu^2 tau) = 8.
    assert {name: bound["k0"] for name, bound in values["theorem_1"].items()} == {
        "as_stated": 32,
        "as_derived": 32,
        "corrected": 32,
    }
    assert values["theorem_2"]["as_stated"]["bound"] > 0


def test_tables_name_the_theorems_and_fit_80_columns():
    result = CliRunner().invoke(app, QUADRATIC, env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    for word in ("Theorem 1", "Theorem 2", "as stated", "corrected", "k0", "largest tau"):
        assert word in result.output
    assert max(len(line) for line in result.output.splitlines()) <= 80


def test_measured_runs_are_compared_and_plotted(tmp_path):
    picture = tmp_path / "bound.png"
    result = CliRunner().invoke(app, [*QUADRATIC, "--measure", "3", "--plot", str(picture)])
    assert result.exit_code == 0, result.output
    assert "Measured over 3 seeds" in result.output
    assert result.output.count("under the bound") == 3
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_theorem_whose_conditions_are_not_met_is_silent():
    arguments = ["synthetic-logistic", "--regularization", "0", "-n", "4", "-r", "2", "-t", "2", "-T", "4"]
    result = CliRunner().invoke(app, [*arguments, "--measure", "2"], env={"COLUMNS": "120"})
    assert result.exit_code == 0, result.output
    assert "as stated: the theorem is silent; its conditions are not met" in result.output
    assert "as stated: under" not in result.output


MNIST = ["mnist-logistic", "-n", "10", "-r", "10", "-t", "2", "-s", "0", "--regularization", "4"]


@pytest.mark.parametrize("partition", ["shared", "iid", "by-label"])
def test_the_assumption_of_equal_clients_is_checked_and_no_printed_guarantee_is_violated(partition):
    """Samples at every client, split, and sorted by label; two seeds."""
    result = CliRunner().invoke(app, [*MNIST, "--partition", partition, "--measure", "2"], env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    words = " ".join(result.output.split())
    assert "ABOVE" not in words and max(len(line) for line in result.output.splitlines()) <= 80
    if partition == "shared":
        assert "f_i = f: met; every client draws from the same samples." in words
        assert words.count("under the bound") == 3 and "does not apply" not in words
    else:
        assert "f_i = f: not met." in words and "Theorems 1 and 2 say nothing about this problem" in words
        assert words.count("does not apply") == 6 and "conditions not met f_i = f f_i = f f_i = f" in words
        assert "For clients that differ: E||x - x*||^2 <= " in words and "heterogeneous: under the bound" in words


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--plot", "x.png"], "shows measured runs"),
        (["--measure", "1"], "measure=1"),
        (["--clients-per-round", "9"], "clients_per_round=9"),
        (["--levels", "1", "--local-steps", "1", "--measure", "2", "--clients-per-round", "1"], "k0="),
        (["-t", str(10**200), "-T", str(10**200)], "local_steps=1000"),
        (["-T", str(5 * 10**60)], "total_steps=5000"),
        (["-B", str(10**400)], "batch_size=1000"),
        (["--measure", str(10**200)], "num_seeds=1000"),
    ],
)
def test_impossible_requests_are_refused(extra, message):
    result = CliRunner().invoke(app, [*QUADRATIC, *extra])
    assert isinstance(result.exception, ConfigError)
    assert message in str(result.exception)
