"""State: what a resumed run must have in common with the one before, and what it keeps."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import ConfigRecord

from fedpaq import CheckpointError
from fedpaq.flower import FedPAQ, quantize_mod
from fedpaq.server.aggregation import ClippedMean
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
