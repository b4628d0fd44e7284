"""StateFile: what can be written and read back, and which files are refused."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import MetricRecord

from fedpaq import CheckpointError
from fedpaq.flower import FedPAQ, quantize_mod
from fedpaq.storage import checkpoint
from flower.flower_apps import drifting_app, quantizing, record
from flower.in_process_grid import InProcessGrid

pytestmark = pytest.mark.flower


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


def test_a_checkpoint_of_an_older_version_is_refused_with_its_version(tmp_path):
    checkpoint.save(tmp_path / "state", {"kind": "fedpaq-flower-2"}, {})
    strategy = FedPAQ(clients_per_round=1, checkpoint=tmp_path / "state")
    with pytest.raises(CheckpointError, match="kind='fedpaq-flower-2', but this fedpaq reads 'fedpaq-flower-3'"):
        strategy.start(quantizing(1), record(w=np.zeros(3, np.float32)))
