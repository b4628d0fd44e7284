"""fedpaq inspect: its table, JSON, and what it refuses."""

from __future__ import annotations

import json

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from codec_cases import arithmetic_message
from fedpaq import Key, LowPrecision, encode
from fedpaq.cli.inspect import examine, inspect
from fedpaq.errors import WireFormatError
from fedpaq.quantizers import QuantizedMessage, RawMessage

app = typer.Typer()
app.command()(inspect)
MESSAGE = arithmetic_message(785, 5, 20)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "update.fpq"
    path.write_bytes(encode(MESSAGE))
    return path


def test_json_tells_header_density_and_entropy(file):
    result = CliRunner().invoke(app, [str(file), "--json"])
    assert result.exit_code == 0, result.output
    values = json.loads(result.stdout)
    nonzeros = int(np.count_nonzero(MESSAGE.signed_levels))
    assert (values["code"], values["dimension"], values["levels"]) == ("gap", 785, 5)
    assert values["nonzeros"] == nonzeros
    assert values["density"] == pytest.approx(nonzeros / 785)
    assert values["bits_per_coordinate"] == pytest.approx(8 * file.stat().st_size / 785)
    assert values["fixed_width_bytes"] == (785 * 4 + 32) / 8
    assert values["payload_over_entropy"] == pytest.approx(file.stat().st_size / values["entropy_bytes"])


def test_the_table_fits_80_columns(file):
    result = CliRunner().invoke(app, [str(file)], env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    assert "bits per coordinate" in result.output
    assert max(map(len, result.output.splitlines())) <= 80


def test_raw_and_empty_messages_are_shown_too():
    assert examine(encode(RawMessage(np.ones(3, np.float32))))["code"] == "raw"
    zeros = QuantizedMessage(np.zeros(5, np.int8), np.zeros(1, np.float32), 1)
    assert examine(encode(zeros))["payload_over_entropy"] is None


def test_a_file_that_is_no_payload_is_refused():
    with pytest.raises(WireFormatError, match="not a fedpaq frame"):
        examine(b"anything else at all")


def test_large_amounts_are_written_out(tmp_path):
    """23,008 bytes, not 2.301e+04."""
    update = np.random.default_rng(0).standard_normal(92_027).astype(np.float32)
    message = LowPrecision(levels=1).quantize(update, key=Key(seed=0))
    (tmp_path / "payload.bin").write_bytes(encode(message))
    result = CliRunner().invoke(app, [str(tmp_path / "payload.bin")], env={"COLUMNS": "80"})
    expected = (2 * 92_027 + 32) / 8  # sign and level, a bit each, and the norm
    assert result.exit_code == 0 and f"{expected:,.0f}" in result.output and "e+" not in result.output
