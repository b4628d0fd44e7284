"""RoundLog: a row per round in CSV, JSONL and TensorBoard, also over crashes and resumed runs."""

from __future__ import annotations

import csv
import json

import pytest
from typer.testing import CliRunner

import fedpaq
from fedpaq.cli import app
from fedpaq.errors import ConfigError
from fedpaq.history import Record
from fedpaq.round_log import COLUMNS, open_log


def record(number, loss=0.5):
    return Record(
        round=number,
        steps=5 * number,
        loss=loss,
        accuracy=None,
        payload_bytes=100 * number,
        upload_bits=800.0 * number,
        computation_seconds=float(number),
        seconds=2.0 * number,
    )


def rows_of(path):
    if path.suffix == ".csv":
        return list(csv.DictReader(path.read_text().splitlines()))
    return [json.loads(line) for line in path.read_text().splitlines()]


def rounds_of(path, method="FedPAQ"):
    return [int(row["round"]) for row in rows_of(path) if row["method"] == method]


@pytest.fixture(params=["run.csv", "run.jsonl"])
def path(request, tmp_path):
    return tmp_path / request.param


def test_a_row_is_on_the_disk_before_the_next_round(path):
    with open_log(path) as log:
        for number in range(4):
            log.add("FedPAQ", record(number))
            assert rounds_of(path) == list(range(number + 1))
    assert all(tuple(row) == COLUMNS for row in rows_of(path))


def test_csv_and_jsonl_hold_the_numbers_of_the_record(tmp_path):
    for name in ("run.csv", "run.jsonl"):
        with open_log(tmp_path / name) as log:
            log.add("FedPAQ", record(3, loss=0.1 + 0.2))
    (as_text,), (as_json,) = rows_of(tmp_path / "run.csv"), rows_of(tmp_path / "run.jsonl")
    assert float(as_text["loss"]) == as_json["loss"] == 0.1 + 0.2
    assert as_text["accuracy"] == "" and as_json["accuracy"] is None
    assert as_json["payload_bytes"] == 300 and as_json["seconds"] == 6.0


def test_a_new_run_starts_a_new_log(path):
    for _ in range(2):
        with open_log(path) as log:
            log.add("FedPAQ", record(0))
    assert rounds_of(path) == [0]


def test_a_resumed_run_replaces_only_the_rounds_it_plays_again(path):
    with open_log(path) as log:
        for number in range(6):
            log.add("FedPAQ", record(number))
        log.add("FedAvg", record(5))
    with open_log(path, resume=True) as log:
        assert rounds_of(path) == list(range(6))  # nothing is dropped before there is something new
        for number in (4, 5, 6):
            log.add("FedPAQ", record(number, loss=0.25))
    assert rounds_of(path) == list(range(7)) and rounds_of(path, "FedAvg") == [5]
    losses = [float(row["loss"]) for row in rows_of(path) if row["method"] == "FedPAQ"]
    assert losses == [0.5] * 4 + [0.25] * 3


@pytest.mark.parametrize("torn", [b"FedPAQ,2,1", b'{"method": "Fed', b"\xff\xfe\n", b"[]\n", b"x,y\n", b"3\n"])
def test_half_a_row_left_by_a_crash_is_dropped(path, torn):
    with open_log(path) as log:
        for number in range(2):
            log.add("FedPAQ", record(number))
    with path.open("ab") as stream:
        stream.write(torn)
    with open_log(path, resume=True) as log:
        log.add("FedPAQ", record(2))
    assert rounds_of(path) == [0, 1, 2]


def test_the_command_line_logs_both_methods_and_goes_on_after_resume(tmp_path):
    path, state = tmp_path / "run.jsonl", tmp_path / "run.ckpt"
    options = ["run", "mnist-logistic", "-r", "5", "--checkpoint", str(state), "--resume", "--log", str(path)]
    result = CliRunner().invoke(app, [*options, "-T", "20"])
    assert result.exit_code == 0, result.output
    assert rounds_of(path) == rounds_of(path, "FedAvg") == [0, 1, 2, 3, 4]
    whole = path.read_text()
    problem = fedpaq.problems.load("mnist-logistic", num_clients=50)
    config = fedpaq.FedPAQConfig(clients_per_round=5, local_steps=5, total_steps=20, step_size=0.5)
    history = fedpaq.train(problem, config, quantizer=fedpaq.LowPrecision(levels=1))
    logged = [row for row in rows_of(path) if row["method"] == "FedPAQ"]
    assert [row["loss"] for row in logged] == [one.loss for one in history.records]
    assert [row["payload_bytes"] for row in logged] == [one.payload_bytes for one in history.records]
    again = CliRunner().invoke(app, [*options, "-T", "20"])  # finished already: nothing is played, nothing lost
    assert again.exit_code == 0 and path.read_text() == whole


def test_tensorboard_reads_what_was_written(tmp_path):
    pytest.importorskip("tensorboard", reason="needs the extra 'tensorboard'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with open_log(tmp_path / "board") as log:
        for number in range(3):
            log.add("FedPAQ", record(number, loss=1 / (1 + number)))
    events = EventAccumulator(str(tmp_path / "board" / "FedPAQ"))
    events.Reload()
    assert [event.step for event in events.Scalars("loss")] == [0, 1, 2]
    assert [event.value for event in events.Scalars("loss")] == pytest.approx([1, 1 / 2, 1 / 3])
    assert [event.value for event in events.Scalars("payload_bytes")] == [0, 100, 200]
    assert "accuracy" not in events.Tags()["scalars"]


def test_a_log_that_cannot_be_written_is_refused_before_training(tmp_path):
    with pytest.raises(ConfigError, match="no folder that exists"):
        open_log(tmp_path / "nowhere" / "run.csv")
    with pytest.raises(ConfigError, match=r"FILE\.csv, FILE\.jsonl or a FOLDER"):
        open_log(tmp_path / "run.parquet")


def test_tensorboard_missing_is_said_with_the_way_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"fedpaq\[tensorboard\]"):
        open_log(tmp_path / "board")
