"""RoundLog: a row per round in CSV, JSONL and TensorBoard, also over crashes and resumed runs."""

from __future__ import annotations

import csv
import json
from dataclasses import fields

import pytest
from typer.testing import CliRunner

import fedpaq
from fedpaq.cli import app
from fedpaq.errors import ConfigError
from fedpaq.run.history import Record
from fedpaq.run.log import open_log

COLUMNS = ("method", *(field.name for field in fields(Record)))


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


def test_a_log_that_gets_no_row_loses_none(path):
    with open_log(path) as log:
        log.add("FedPAQ", record(0))
    before = path.read_bytes()
    with open_log(path):
        assert path.read_bytes() == before
    assert path.read_bytes() == before


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


@pytest.mark.parametrize(
    "torn", [b"FedPAQ,2,1", b'{"method": "Fed', b"\xff\xfe\n", b"[]\n", b"x,y\n", b"3\n", b"\0" * 9]
)
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


def test_a_log_that_cannot_be_written_is_refused_before_training(tmp_path):
    with pytest.raises(ConfigError, match="is in a folder that does not exist"):
        open_log(tmp_path / "nowhere" / "run.csv")
    with pytest.raises(ConfigError, match=r"FILE\.csv, FILE\.jsonl, a FOLDER"):
        open_log(tmp_path / "run.parquet")


def foreign_row(**changes):
    return json.dumps({**dict.fromkeys(COLUMNS, 0), "method": "FedPAQ", **changes}).encode()


FOREIGN = {
    "a round that is a list": foreign_row(round=[1]),
    "a round that is a mapping": foreign_row(round={}),
    "a round that is no number": foreign_row(round="two"),
    "a round that is nothing": foreign_row(round=None),
    "a round beyond all": foreign_row(round=7).replace(b'"round": 7', b'"round": 1e999'),
    "a row without a method": b'{"round": 0}',
    "nesting beyond the stack": b"[" * 100_000,
    "a cell beyond what csv reads": b"x" * 200_000,
    "an integer beyond what Python reads": b"9" * 5_000,
}


@pytest.mark.parametrize("line", FOREIGN.values(), ids=FOREIGN)
def test_a_row_that_no_log_wrote_and_what_follows_it_are_dropped(path, line):
    with open_log(path) as log:
        log.add("FedPAQ", record(0))
    good = path.read_bytes()
    path.write_bytes(good + line + b"\n" + good.splitlines(keepends=True)[-1])
    with open_log(path, resume=True) as log:
        assert path.read_bytes() == good
        log.add("FedPAQ", record(1))
    assert rounds_of(path) == [0, 1]


def test_a_resumed_log_keeps_every_number_to_the_last_bit(path):
    exact = record(0, loss=0.1 + 0.2)
    with open_log(path) as log:
        log.add("FedPAQ", exact)
    before = path.read_bytes()
    with open_log(path, resume=True):
        pass
    assert path.read_bytes() == before
    assert float(rows_of(path)[0]["loss"]) == exact.loss


def test_a_file_of_something_else_is_begun_anew(path):
    path.write_bytes(b"name,age\nAda,36\n")
    with open_log(path, resume=True) as log:
        log.add("FedPAQ", record(0))
    assert rounds_of(path) == [0] and b"Ada" not in path.read_bytes()


def test_a_log_is_closed_when_the_run_fails(path):
    with pytest.raises((AttributeError, TypeError)), open_log(path) as log:
        [log.add("FedPAQ", one) for one in (record(0), None)]
    assert rounds_of(path) == [0]
    with pytest.raises(ValueError, match="closed"):
        log.add("FedPAQ", record(1))


def test_a_resumed_log_that_was_never_begun_is_begun(path):
    with open_log(path, resume=True) as log:
        log.add("FedPAQ", record(0))
    assert rounds_of(path) == [0] and [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_methods_are_replaced_each_on_its_own(path):
    with open_log(path) as log:
        for number in range(3):
            log.add("FedPAQ", record(number))
            log.add('Fed,"Avg"', record(number))
    with open_log(path, resume=True) as log:
        log.add('Fed,"Avg"', record(1, loss=0.1))
    assert rounds_of(path) == [0, 1, 2] and rounds_of(path, 'Fed,"Avg"') == [0, 1]


def test_a_log_through_a_link_is_written_where_the_link_points(path):
    real = path.parent / "elsewhere"
    real.mkdir()
    path.symlink_to(real / path.name)
    with open_log(path) as log:
        log.add("FedPAQ", record(0))
    assert path.is_symlink() and rounds_of(real / path.name) == [0]


def test_a_folder_with_a_dot_in_its_name_is_no_unknown_form(tmp_path):
    pytest.importorskip("tensorboard", reason="needs the extra 'tensorboard'")
    (tmp_path / "runs.2024").mkdir()
    with open_log(tmp_path / "runs.2024"):
        assert list((tmp_path / "runs.2024").iterdir()) == []


def test_a_csv_file_widens_when_a_row_brings_new_columns(tmp_path):
    path = tmp_path / "run.csv"
    with open_log(path) as log:
        log.add("FedPAQ", {"round": 1, "clients": 3})
        log.add("FedPAQ", {"round": 2, "clients": 2, "accuracy": 0.5})
        log.add("FedPAQ", {"round": 3})
    assert path.read_text() == "method,round,clients,accuracy\nFedPAQ,1,3,\nFedPAQ,2,2,0.5\nFedPAQ,3,,\n"
    with open_log(path, resume=True) as log:
        log.add("FedPAQ", {"round": 3, "loss": 0.25})
    assert path.read_text().splitlines()[0].split(",") == ["method", "round", "clients", "accuracy", "loss"]
    assert [row["loss"] for row in rows_of(path)] == ["", "", "0.25"]
