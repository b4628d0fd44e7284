"""Histories: JSON in and out, time to a loss, whole files only."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

import fedpaq
from fedpaq.errors import ConfigError


def test_a_history_survives_json(logistic, config, tmp_path):
    history = fedpaq.train(logistic, config, quantizer=fedpaq.LowPrecision(levels=1))
    history.save(tmp_path / "run.json")
    back = fedpaq.History.load(tmp_path / "run.json")
    assert back.records == history.records
    assert np.array_equal(back.params, history.params)
    assert back.to_json() == history.to_json()
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_amounts_add_up_over_the_rounds(logistic, config):
    records = fedpaq.train(logistic, config, quantizer=fedpaq.LowPrecision(levels=1)).records
    assert (records[0].round, records[0].payload_bytes, records[0].seconds) == (0, 0, 0.0)
    for before, after in itertools.pairwise(records):
        assert after.round == before.round + 1
        assert after.steps == before.steps + config.local_steps
        assert after.payload_bytes > before.payload_bytes
        assert after.seconds > before.seconds


def test_time_to_a_loss_is_that_of_the_first_record_at_or_below_it(logistic, config):
    history = fedpaq.train(logistic, config)
    third = history.records[3]
    assert history.seconds_to(third.loss) <= third.seconds
    assert history.seconds_to(0.0) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "other"}', '{"format": "fedpaq-history-1"}'])
def test_foreign_text_is_refused(text):
    with pytest.raises(ConfigError, match="not a history"):
        fedpaq.History.from_json(text)


def test_broken_params_are_refused(logistic, config):
    values = json.loads(fedpaq.train(logistic, config).to_json())
    values["params"] = "???"
    with pytest.raises(ConfigError, match="not a history"):
        fedpaq.History.from_json(json.dumps(values))


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("dimension",), 36),
        (("dimension",), "37"),
        (("dimension",), True),
        (("problem",), 1),
        (("config",), []),
        (("diverged",), 3),
        (("aggregation",), None),
        (("payload_size_source",), 5),
        (("payload_size_source",), None),
        (("records", 0, "loss"), 10**400),
        (("records", 0, "seconds"), -(10**400)),
        (("records", 0, "payload_bytes"), 10**400),
        (("records",), []),
        (("records",), {}),
        (("records", 0), None),
        (("records", 0, "loss"), "low"),
        (("records", 0, "seconds"), None),
        (("records", 0, "round"), 1.5),
        (("records", 0, "steps"), False),
        (("params",), 7),
        ((), [1]),
    ],
)
def test_a_history_with_a_field_of_the_wrong_kind_is_refused(logistic, config, where, value):
    values = json.loads(fedpaq.train(logistic, config).to_json())
    at = values
    for key in where[:-1]:
        at = at[key]
    if where:
        at[where[-1]] = value
    with pytest.raises(ConfigError, match="not a history"):
        fedpaq.History.from_json(json.dumps(values if where else value))


@pytest.mark.parametrize(
    "text", ['{"format": NaN}', "[" * 100_000, "1e999", '{"format": "fedpaq-history-1", "params": 1e999}']
)
def test_json_that_no_history_writes_is_refused(text):
    with pytest.raises(ConfigError, match="not a history"):
        fedpaq.History.from_json(text)


def test_a_file_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "run.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not a text file"):
        fedpaq.History.load(tmp_path / "run.json")


@pytest.mark.parametrize("path", [None, 3, ""])
def test_what_is_not_a_path_is_refused_on_the_way_out_and_in(logistic, config, path):
    history = fedpaq.train(logistic, config)
    for access in (history.save, fedpaq.History.load):
        with pytest.raises(ConfigError, match=f"history={path!r} is not a path; write e.g. 'run.json'"):
            access(path)


def test_a_field_that_is_missing_is_named():
    with pytest.raises(ConfigError, match="it has no 'format'"):
        fedpaq.History.from_json("{}")
