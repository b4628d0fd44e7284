"""State: what a checkpoint holds, and which ones are refused."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import ConfigRecord, MetricRecord

from fedpaq import CheckpointError
from fedpaq.flower import FedPAQ, quantize_mod
from fedpaq.server.aggregation import ClippedMean
from fedpaq.storage import checkpoint
from flower.flower_apps import drifting_app, quantizing, record
from flower.in_process_grid import InProcessGrid

pytestmark = pytest.mark.flower


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"seed": 1}, "was made with seed=0, but this run has 1"),
        ({"clients_per_round": 1}, "clients_per_round=2, but this run has 1"),
        ({"num_clients": 3}, "num_clients=2, but this run has 3"),
        ({"aggregation": ClippedMean(max_norm=1.0)}, "aggregation='mean'"),
        ({"quantizer": "low-precision:1"}, "quantizer='any'"),
    ],
)
def test_another_run_s_checkpoint_is_refused_by_name(tmp_path, changed, message):
    grid = InProcessGrid(drifting_app(quantize_mod(levels=1)), 3)
    settings = {"clients_per_round": 2, "fraction_evaluate": 0.0, "checkpoint": tmp_path / "state"}
    start = record(w=np.zeros(9, np.float32))
    FedPAQ(**settings).start(grid, start, num_rounds=1)
    with pytest.raises(CheckpointError, match=message):
        FedPAQ(**{**settings, **changed}).start(grid, start, num_rounds=2)


def test_another_model_s_checkpoint_is_refused(tmp_path):
    grid = InProcessGrid(drifting_app(quantize_mod(levels=1)), 2)
    settings = {"clients_per_round": 2, "fraction_evaluate": 0.0, "checkpoint": tmp_path / "state"}
    FedPAQ(**settings).start(grid, record(w=np.zeros(9, np.float32)), num_rounds=1)
    with pytest.raises(CheckpointError, match=r"another model \(p=9, this run has p=8\)"):
        FedPAQ(**settings).start(grid, record(w=np.zeros(8, np.float32)), num_rounds=1)


def test_a_foreign_or_damaged_file_is_refused(tmp_path):
    grid = InProcessGrid(drifting_app(quantize_mod(levels=1)), 1)
    path = tmp_path / "state"
    strategy = FedPAQ(clients_per_round=1, checkpoint=path)
    checkpoint.save(path, {"kind": "other"}, {})
    with pytest.raises(CheckpointError, match="is not the state of a Flower run"):
        strategy.start(grid, record(w=np.zeros(3, np.float32)))
    path.write_bytes(b"not a checkpoint at all, but long enough to be looked at closely")
    with pytest.raises(CheckpointError, match="is not a fedpaq checkpoint"):
        strategy.start(grid, record(w=np.zeros(3, np.float32)))


def test_metrics_that_are_not_finite_can_be_saved(tmp_path):
    path = tmp_path / "state"
    app = drifting_app(quantize_mod(levels=1))
    settings = {"clients_per_round": 1, "checkpoint": path, "fraction_evaluate": 0.0}
    start = record(w=np.zeros(3, np.float32))
    FedPAQ(**settings).start(
        InProcessGrid(app, 1), start, num_rounds=1, evaluate_fn=lambda *_: MetricRecord({"loss": float("inf")})
    )
    result = FedPAQ(**settings).start(InProcessGrid(app, 1), start, num_rounds=1)
    assert np.isnan(result.evaluate_metrics_serverapp[1]["loss"])


def test_two_servers_cannot_work_on_one_checkpoint(tmp_path):
    settings = {"clients_per_round": 2, "fraction_evaluate": 0.0, "checkpoint": tmp_path / "state"}
    start, refused = record(w=np.zeros(9, np.float32)), []

    def second_server(server_round, arrays):
        with pytest.raises(CheckpointError, match="in use") as error:
            FedPAQ(**settings).start(quantizing(2), start, num_rounds=1)
        refused.append(error.value)

    FedPAQ(**settings).start(quantizing(2), start, num_rounds=1, evaluate_fn=second_server)
    assert len(refused) == 2
    FedPAQ(**settings).start(quantizing(2), start, num_rounds=2)  # the lock went with the first


def test_a_folder_that_cannot_be_written_is_refused_before_any_work(tmp_path):
    grid = quantizing(2)
    with pytest.raises(CheckpointError, match="missing/state"):
        FedPAQ(clients_per_round=2, checkpoint=tmp_path / "missing" / "state").start(
            grid, record(w=np.zeros(9, np.float32))
        )
    assert grid.sent == []


def test_a_resumed_run_keeps_its_identity(tmp_path):
    settings = {"clients_per_round": 2, "fraction_evaluate": 0.0}
    start, runs = record(w=np.zeros(9, np.float32)), []
    for name in ("state", "state", "other"):
        strategy = FedPAQ(**settings, checkpoint=tmp_path / name)
        strategy.start(quantizing(2), start, num_rounds=1 + len(runs))
        runs.append(strategy._state.run)
    assert runs[0] == runs[1] != runs[2]


def test_a_changed_config_is_refused_by_name_rather_than_ignored(tmp_path):
    settings = {"clients_per_round": 1, "fraction_evaluate": 0.0, "checkpoint": tmp_path / "state"}
    start, given = (record(w=np.zeros(9, np.float32)), ConfigRecord({"lr": 0.4, "tag": b"a", "nan": float("nan")}))
    FedPAQ(**settings).start(quantizing(1), start, num_rounds=1, train_config=given)
    FedPAQ(**settings).start(quantizing(1), start, num_rounds=2, train_config=given)  # now with server-round
    other = ConfigRecord({**given, "lr": 0.1})
    with pytest.raises(CheckpointError, match=r"made with train_config\['lr'\]=0.4, but this run has 0.1"):
        FedPAQ(**settings).start(quantizing(1), start, num_rounds=3, train_config=other)
