"""fedpaq doctor: everything it names is there to see."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from fedpaq.cli import app


def test_the_doctor_reports_versions_kernels_and_data():
    result = CliRunner().invoke(app, ["doctor", "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["packages"]["torch"] != "not installed"
    assert set(report["kernels"].values()) == {"ready"}
    assert report["data"]["mnist-0-8"] == "bundled"


def test_the_table_fits_80_columns():
    result = CliRunner().invoke(app, ["doctor"], env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    assert max(len(line) for line in result.output.splitlines()) <= 80


def test_a_wrong_data_folder_is_a_finding():
    result = CliRunner().invoke(app, ["doctor", "--json"], env={"FEDPAQ_DATA": "/nowhere"})
    assert result.exit_code == 0, result.output
    assert "is not a folder" in json.loads(result.stdout)["data"]["folder"]
