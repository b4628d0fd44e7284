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
        ({"max_update_norm": 9.0}, "max_update_norm=None, but this run has 9.0"),
        ({"weighted_by_key": "n"}, "weighted_by_key='num-examples', but this run has 'n'"),
        ({"min_replies": 2}, "min_replies=1, but this run has 2"),
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


def test_a_checkpoint_of_an_older_version_is_refused_with_its_version(tmp_path):
    checkpoint.save(tmp_path / "state", {"kind": "fedpaq-flower-2"}, {})
    strategy = FedPAQ(clients_per_round=1, checkpoint=tmp_path / "state")
    with pytest.raises(CheckpointError, match="kind='fedpaq-flower-2', but this fedpaq reads 'fedpaq-flower-3'"):
        strategy.start(quantizing(1), record(w=np.zeros(3, np.float32)))


def resumed(tmp_path, *grids, starts=None, **settings):
    """Play one round more with each of the grids, and return the last strategy."""
    for at, grid in enumerate(grids):
        strategy = FedPAQ(clients_per_round=2, fraction_evaluate=0.0, checkpoint=tmp_path / "state", **settings)
        start = record(w=np.zeros(40, np.float32)) if starts is None else starts[at]
        strategy.start(grid, start, num_rounds=at + 1)
    return strategy


def test_another_initial_model_is_told_and_the_run_goes_on_from_its_checkpoint(tmp_path, caplog):
    starts = [record(w=np.full(40, value, np.float32)) for value in (1.0, 1.0, 2.0)]
    resumed(tmp_path, quantizing(2), quantizing(2), starts=starts)
    assert "another initial model" not in caplog.text
    strategy = resumed(tmp_path, *[quantizing(2) for _ in range(3)], starts=starts)
    assert "began with another initial model than the one given, which is not used" in caplog.text
    assert strategy.history[-1].server_round == 3


def quantized(*texts):
    """A grid of one client for each quantizer."""
    mods = [quantize_mod(quantizer=text) for text in texts]
    choose = lambda message, context, call_next: mods[context.node_config["partition-id"]](message, context, call_next)
    return InProcessGrid(drifting_app(choose), len(texts))


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (["low-precision:1"] * 2, ["low-precision:1"] * 2, None),
        (["rotated:2"] * 2, ["rotated:2"] * 2, None),
        (["low-precision:1", "none"], ["none", "low-precision:3"], None),  # mixed on purpose
        (["low-precision:1"] * 2, ["low-precision:3"] * 2, "quantizer=low-precision(s=3) made the uploads"),
        (["low-precision:1"] * 2, ["none"] * 2, "quantizer=raw made the uploads"),
        (["low-precision:1,bucket_size=8"] * 2, ["low-precision:1"] * 2, "but low-precision(s=1, bucket=8) the first"),
    ],
)
def test_another_quantizer_after_a_resume_is_told_once(tmp_path, caplog, before, after, told):
    resumed(tmp_path, quantized(*before), quantized(*after), quantized(*after))
    assert caplog.text.count("made the uploads after the resume") == (0 if told is None else 2)  # once for each resume
    assert told is None or told in caplog.text


def test_the_quantizers_of_the_first_payloads_that_count_are_kept(tmp_path):
    strategy = resumed(tmp_path, quantized("none", "low-precision:1"), quantized("none", "low-precision:3"))
    assert strategy._state.makers == ["low-precision(s=1)", "raw"]
