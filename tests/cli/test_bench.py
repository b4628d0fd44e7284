"""fedpaq bench codec: ratios as a table and as JSON."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from fedpaq.cli import bench


def test_bench_codec_prints_ratios():
    command = ["codec", "-p", "785", "-p", "3000", "-s", "1", "-s", "0", "--repeats", "1"]
    result = CliRunner().invoke(bench.app, command, env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    assert max(map(len, result.output.splitlines())) <= 80
    result = CliRunner().invoke(bench.app, [*command, "--json"])
    rows = json.loads(result.stdout)
    assert [(row["dimension"], row["levels"]) for row in rows] == [(785, 1), (785, 29), (3000, 1), (3000, 55)]
    assert all(row["payload_over_entropy"] > 0.9 for row in rows)
    assert set(bench.COLUMNS.values()) <= rows[0].keys()


def test_bench_codec_measures_any_quantizer():
    command = ["codec", "-p", "785", "--quantizer", "rotated:1", "--quantizer", "none", "--repeats", "1"]
    result = CliRunner().invoke(bench.app, command, env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    assert "rotated:1" in result.output and max(map(len, result.output.splitlines())) <= 80
    rows = json.loads(CliRunner().invoke(bench.app, [*command, "-s", "2", "--json"]).stdout)
    assert [row["quantizer"] for row in rows] == ["rotated:1", "none", "low-precision:2"]
    assert rows[0]["payload_bytes"] < 120 < 3000 < rows[1]["payload_bytes"]
