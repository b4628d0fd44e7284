"""Report: the operator's line per round, the table at the end, and the rows of every log."""

from __future__ import annotations

import csv
import json
import logging
import re

import numpy as np
import pytest
from flwr.app import MetricRecord

from fedpaq.flower import FedPAQ
from fedpaq.flower.loop import model_bytes
from fedpaq.flower.report import TABLE_ROWS, measured, names_of, rows_of, size, table_of
from flower.flower_apps import payload_of, quantizing, record

pytestmark = pytest.mark.flower


def model():
    return record(w=np.zeros(400, np.float32), running_mean=np.zeros(2, np.float32))


def accuracy(server_round, arrays):
    return MetricRecord({"accuracy": 0.5 + server_round / 10})


def losing(grid, lost):
    """Let the uploads of client 2 be lost in the rounds of ``lost``."""
    grid.meddle = lambda client, reply: (
        None if client == 2 and payload_of(reply) and grid.sent[-1].content["config"]["server-round"] in lost else reply
    )
    return grid


def test_a_round_is_one_line_with_clients_metrics_bytes_and_seconds(caplog):
    strategy = FedPAQ(clients_per_round=3, deadline=0.1, fraction_evaluate=0.0)
    with caplog.at_level(logging.INFO, logger="flwr"):
        strategy.start(losing(quantizing(3), {2}), model(), num_rounds=2, evaluate_fn=accuracy)
    first, second = (line for line in caplog.messages if re.match(r"round \d/2:", line))
    sent = [found.payload_bytes for found in strategy.history]
    assert first.startswith("round 1/2: 3 of 3 clients, train-loss 1.333, accuracy 0.6; ")
    assert f"up {sent[0] + 24} B (payload {sent[0]} B, exact 24 B), down 4.8 kB; " in first
    assert second.startswith("round 2/2: 2 of 3 clients (1 late), train-loss 0.6667, accuracy 0.7; ")
    assert re.search(r"; \d+\.\d s; so far up \d+ B, down 9\.6 kB$", second)


@pytest.mark.parametrize("downlink", ["dense", "rotated:1"])
def test_models_sent_to_evaluate_are_counted(downlink, tmp_path, caplog, monkeypatch):
    monkeypatch.setenv("FEDPAQ_CACHE", str(tmp_path))
    grid = quantizing(3)
    strategy = FedPAQ(clients_per_round=1, downlink=downlink)
    with caplog.at_level(logging.INFO, logger="flwr"):
        strategy.start(grid, model(), num_rounds=3)
    sent = {"train": 0, "evaluate": 0}
    for message in grid.sent:
        sent[message.metadata.message_type] += model_bytes(message)
    trained = sum(found.download_bytes for found in strategy.history)
    evaluated = sum(found.evaluation_bytes for found in strategy.history)
    assert (trained, evaluated) == (sent["train"], sent["evaluate"]) and min(trained, evaluated) > 0
    last = next(line for line in caplog.messages if line.startswith("round 3/3:"))
    assert f"to evaluate {size(strategy.history[-1].evaluation_bytes)})" in last
    assert last.endswith(f"down {size(trained + evaluated)}")


def test_a_run_ends_with_a_table_and_where_the_model_is(tmp_path, caplog):
    strategy = FedPAQ(clients_per_round=2, fraction_evaluate=0.0, save=tmp_path / "model.npz")
    with caplog.at_level(logging.INFO, logger="flwr"):
        strategy.start(quantizing(2), model(), num_rounds=3, evaluate_fn=accuracy)
    heading = next(at for at, line in enumerate(caplog.messages) if line.startswith("round  clients"))
    assert caplog.messages[heading].split()[-2:] == ["train-loss", "accuracy"]
    assert [line.split()[0] for line in caplog.messages[heading + 1 : heading + 4]] == ["1", "2", "3"]
    assert caplog.messages[-1].endswith(f"the model is saved to {tmp_path / 'model.npz'}")


def test_a_long_run_shows_some_of_its_rounds():
    rows = [
        {
            "round": at,
            "counted": 2,
            "asked": 3,
            "payload_bytes": at,
            "exact_bytes": 0,
            "download_bytes": 0,
            "seconds": 0.0,
        }
        for at in range(1, 101)
    ]
    lines = table_of(rows)
    assert len(lines) == 1 + TABLE_ROWS
    assert lines[1].split()[:4] == ["1", "2", "of", "3"] and lines[-1].split()[0] == "100"
    assert len({len(line) for line in lines}) == 1
    assert len(table_of(rows[:1])) == 2


@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl"])
def test_a_resumed_run_leaves_the_rows_of_an_uninterrupted_one(tmp_path, name):
    def rows():
        text = (tmp_path / name).read_text().splitlines()
        found = list(csv.DictReader(text)) if name.endswith("csv") else [json.loads(line) for line in text]
        return [{key: value for key, value in row.items() if key != "seconds"} for row in found]

    def run(num_rounds, **more):
        strategy = FedPAQ(clients_per_round=2, log=[tmp_path / name], **more)
        strategy.start(quantizing(2), model(), num_rounds=num_rounds, evaluate_fn=accuracy)
        return strategy

    whole = run(4)
    expected = rows()
    assert [int(row["round"]) for row in expected] == [1, 2, 3, 4] and expected[0]["method"] == "FedPAQ"
    assert [float(row["accuracy"]) for row in expected] == [0.6, 0.7, 0.8, 0.9]
    assert int(expected[-1]["payload_bytes"]) == sum(found.payload_bytes for found in whole.history)
    assert {"mean", "client"} <= set(expected[0])  # what clients evaluated
    run(2, checkpoint=tmp_path / "state")
    run(4, checkpoint=tmp_path / "state")
    assert rows() == expected


def colliding(**more):
    """A strategy whose places all measure ``loss``, and some what a row has columns for."""
    return FedPAQ(
        clients_per_round=2,
        train_metrics_aggr_fn=lambda *_: MetricRecord({"loss": 1.0, "round": 70, "list": [1.0], "only": 5.0}),
        evaluate_metrics_aggr_fn=lambda *_: MetricRecord({"loss": 2.0, "seconds": 71, "list": 4.0}),
        **more,
    )


def sometimes(server_round, arrays):
    """Evaluate in every other round, and not before the first."""
    return MetricRecord({"loss": 3.0, "method": 72.0}) if server_round and not server_round % 2 else None


def test_metrics_of_one_name_and_those_named_like_a_column_say_where_they_were_measured():
    strategy = colliding()
    strategy.start(quantizing(2), model(), num_rounds=3, evaluate_fn=sometimes)
    rows = rows_of(strategy._state)
    assert [row["round"] for row in rows] == [1, 2, 3] and all(row["seconds"] < 70 for row in rows)
    always = {"train-loss": 1.0, "train-round": 70, "only": 5.0, "loss": 2.0, "clients-seconds": 71, "list": 4.0}
    found = [{name: row[name] for name in measured(row)} for row in rows]
    assert found == [always, {**always, "server-loss": 3.0, "server-method": 72.0}, always]


def test_a_prefixed_name_takes_no_other_s_place():
    found = {
        "train": {1: {"loss": 1.0, "train-loss": 2.0, "server-loss": 3.0}},
        "clients": {1: {"loss": 4.0}},
        "server": {0: {"loss": 5.0}},
    }
    names = names_of(found)
    assert len(set(names.values())) == 5
    assert names["train", "train-loss"] == "train-loss" and names["train", "loss"] == "train-train-loss"
    assert names["server", "loss"] == "server-loss" and names["train", "server-loss"] == "train-server-loss"


def test_a_resumed_run_with_colliding_names_leaves_the_rows_of_an_uninterrupted_one(tmp_path):
    def rows(path):
        found = [json.loads(line) for line in path.read_text().splitlines()]
        return [{key: value for key, value in row.items() if key != "seconds"} for row in found]

    whole, parts = tmp_path / "whole.jsonl", tmp_path / "parts.jsonl"
    colliding(log=whole).start(quantizing(2), model(), num_rounds=4, evaluate_fn=sometimes)
    for num_rounds in (1, 3, 4):
        strategy = colliding(log=parts, checkpoint=tmp_path / "state")
        strategy.start(quantizing(2), model(), num_rounds=num_rounds, evaluate_fn=sometimes)
    assert rows(parts) == rows(whole)
    assert ["server-loss" in row for row in rows(whole)] == [False, True, False, True]


def test_an_own_log_gets_the_same_rows():
    class Mine:
        rows = ()

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.closed = True

        def add(self, method, row):
            self.rows += ((method, row),)

    mine = Mine()
    strategy = FedPAQ(clients_per_round=2, log=mine)
    strategy.start(quantizing(2), model(), num_rounds=2)
    assert [row for _, row in mine.rows] == rows_of(strategy._state) and mine.closed
    assert [method for method, _ in mine.rows] == ["FedPAQ"] * 2


def test_bytes_are_shown_in_units():
    assert [size(count) for count in (0, 999, 1000, 5_930, 44_006_709, 2_500_000_000)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "5.9 kB",
        "44.0 MB",
        "2.5 GB",
    ]
