"""Trackers: what TensorBoard, Weights & Biases and MLflow read back is what was written."""

from __future__ import annotations

import struct
import warnings

import pytest

from fedpaq.errors import ConfigError
from fedpaq.run.history import Record
from fedpaq.run.log import open_log

LOSSES = [1.0, 0.5, 0.25]


def record(number):
    return Record(
        round=number,
        steps=5 * number,
        loss=LOSSES[number],
        accuracy=None,
        payload_bytes=100 * number,
        upload_bits=800.0 * number,
        computation_seconds=float(number),
        seconds=2.0 * number,
    )


def write(target, rounds=range(3), **more):
    with open_log(target, **more) as log:
        for number in rounds:
            log.add("FedPAQ", record(number))


def test_tensorboard_reads_what_was_written(tmp_path):
    pytest.importorskip("tensorboard", reason="needs the extra 'tensorboard'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    write(tmp_path / "board")
    events = EventAccumulator(str(tmp_path / "board" / "FedPAQ"))
    events.Reload()
    assert [event.step for event in events.Scalars("loss")] == [0, 1, 2]
    assert [event.value for event in events.Scalars("loss")] == pytest.approx(LOSSES)
    assert [event.value for event in events.Scalars("payload_bytes")] == [0, 100, 200]
    assert "accuracy" not in events.Tags()["scalars"]


@pytest.fixture
def mlflow_client(tmp_path, monkeypatch):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("mlflow", reason="needs the extra 'mlflow'")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow.tracking import MlflowClient

    return MlflowClient()


@pytest.mark.filterwarnings("ignore")
def test_mlflow_reads_what_was_written_also_over_a_resumed_run(mlflow_client):
    write("mlflow:night", range(2), run="abc")
    write("mlflow:night", range(1, 3), run="abc")  # round 1 again, then on
    write("mlflow:night", range(1), run="other")
    experiment = mlflow_client.get_experiment_by_name("night")
    runs = mlflow_client.search_runs([experiment.experiment_id])
    assert sorted(run.data.tags["fedpaq-run"] for run in runs) == ["abc-FedPAQ", "other-FedPAQ"]
    (resumed,) = (run.info.run_id for run in runs if run.data.tags["fedpaq-run"] == "abc-FedPAQ")
    found = mlflow_client.get_metric_history(resumed, "loss")
    assert sorted((entry.step, entry.value) for entry in found) == list(enumerate(LOSSES))
    assert {run.info.status for run in runs} == {"FINISHED"}


def entries_of(log):
    """The entries of a file of Weights & Biases, which is a LevelDB log: checksum, length, kind, data, in blocks."""
    at, part = 7, b""
    while at < len(log):
        if 32768 - at % 32768 < 7:  # too little for another head
            at += 32768 - at % 32768
            continue
        length, kind = struct.unpack("<HB", log[at + 4 : at + 7])
        part += log[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last of several parts
            yield part
            part = b""


@pytest.mark.filterwarnings("ignore")
def test_wandb_offline_keeps_what_was_written(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="needs the extra 'wandb'")
    from wandb.proto import wandb_internal_pb2

    for name, value in {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true"}.items():
        monkeypatch.setenv(name, value)
    write("wandb:night", run="abc")
    wandb.teardown()  # as at the end of a process: waits for the service that writes the file, which finish() does not
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    rows, ids = [], set()
    for data in entries_of(file.read_bytes()):
        entry = wandb_internal_pb2.Record()
        entry.ParseFromString(data)
        if entry.HasField("history"):
            rows.append({"/".join(item.nested_key) or item.key: item.value_json for item in entry.history.item})
        if entry.HasField("run"):
            ids.add((entry.run.run_id, entry.run.project))
    assert ids == {("abc-FedPAQ", "night")}
    assert [(int(row["_step"]), float(row["loss"])) for row in rows] == list(enumerate(LOSSES))
    assert [float(row["payload_bytes"]) for row in rows] == [0, 100, 200]


@pytest.mark.parametrize("package", ["tensorboard", "wandb", "mlflow"])
def test_a_missing_tracker_is_said_with_the_way_to_get_it(package, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=rf"fedpaq\[{package}\]"):
        open_log(tmp_path / "board" if package == "tensorboard" else f"{package}:night")


@pytest.mark.filterwarnings("ignore")
def test_wandb_without_an_account_is_refused_with_what_to_set(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="needs the extra 'wandb'")

    def refuse(**_):
        raise wandb.errors.UsageError("No API key configured.\nUse `wandb login` to log in.")

    monkeypatch.setattr(wandb, "init", refuse)
    said = r"^log='wandb:night' cannot be opened \(No API key configured. Use `wandb login` .*\); WANDB_MODE=offline"
    with pytest.raises(ConfigError, match=said):
        write("wandb:night")


@pytest.mark.filterwarnings("ignore")
def test_an_mlflow_store_that_does_not_answer_is_refused_with_what_to_set(monkeypatch):
    pytest.importorskip("mlflow", reason="needs the extra 'mlflow'")
    for name, value in {"TRACKING_URI": "http://127.0.0.1:9", "HTTP_REQUEST_MAX_RETRIES": "0"}.items():
        monkeypatch.setenv(f"MLFLOW_{name}", value)
    with pytest.raises(ConfigError, match=r"^log='mlflow:night' cannot be opened \(.*\); MLFLOW_TRACKING_URI says"):
        open_log("mlflow:night")
