"""Settings: FedAvg's arguments are accepted or answered with what replaces them; files are checked before any work."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from flwr.app import MetricRecord

from fedpaq import ConfigError, CostModel, Rotated
from fedpaq.downlink import Dense
from fedpaq.flower import FedPAQ, quantize_mod
from fedpaq.flower.settings import INSTEAD
from flower.flower_apps import drifting_app, quantizing, record
from flower.in_process_grid import InProcessGrid

pytestmark = pytest.mark.flower


@pytest.mark.parametrize(
    ("given", "instead"),
    [
        ("fraction_train", "clients_per_round="),
        ("min_train_nodes", "min_replies="),
        ("min_available_nodes", "num_clients="),
    ],
)
def test_an_argument_of_fedavg_without_a_meaning_is_answered_with_what_to_write(given, instead):
    with pytest.raises(ConfigError, match=f"^{given}=3 is FedAvg's .*{instead}"):
        FedPAQ(**{given: 3})
    with pytest.raises(ConfigError, match=f"^{given}=3 is FedAvg's"):
        FedPAQ(clients_per_round=3, **{given: 3})


def test_every_argument_of_fedavg_is_taken_or_answered():
    import inspect

    from flwr.serverapp.strategy import FedAvg

    theirs = set(inspect.signature(FedAvg).parameters)
    ours = set(inspect.signature(FedPAQ).parameters)
    assert theirs - ours == set(INSTEAD)


def test_an_unknown_argument_and_a_missing_one_are_named():
    with pytest.raises(TypeError, match="unexpected keyword argument 'clients'"):
        FedPAQ(clients=3)
    with pytest.raises(ConfigError, match="clients_per_round is missing"):
        FedPAQ()


def test_metrics_are_made_by_the_functions_given():
    def largest(replies, weighted_by):
        assert weighted_by == "num-examples"
        reports = [next(iter(reply.metric_records.values())) for reply in replies]
        return MetricRecord({"largest": max(report["num-examples"] for report in reports)})

    strategy = FedPAQ(clients_per_round=3, train_metrics_aggr_fn=largest, evaluate_metrics_aggr_fn=largest)
    result = strategy.start(quantizing(3), record(w=np.zeros(4, np.float32)), num_rounds=1)
    assert result.train_metrics_clientapp[1]["largest"] == 3
    assert "train-loss" not in result.train_metrics_clientapp[1]
    assert dict(result.evaluate_metrics_clientapp[1]) == {"largest": 1}


@pytest.mark.parametrize(("least", "evaluating"), [(0, 1), (1, 1), (2, 2), (9, 3)])
def test_at_least_so_many_clients_evaluate(least, evaluating):
    grid = quantizing(3)
    strategy = FedPAQ(clients_per_round=3, fraction_evaluate=0.1, min_evaluate_nodes=least)
    strategy.start(grid, record(w=np.zeros(4, np.float32)), num_rounds=1)
    assert sum(message.metadata.message_type == "evaluate" for message in grid.sent) == evaluating


@pytest.mark.parametrize(
    ("save", "message"),
    [("model.pickle", "choose FILE.npz or FILE.safetensors"), ("missing/model.npz", "create it first")],
)
def test_a_model_that_could_not_be_saved_is_refused_before_any_work(tmp_path, save, message):
    with pytest.raises(ConfigError, match=message):
        FedPAQ(clients_per_round=1, save=tmp_path / save)


def test_a_checkpoint_that_is_a_folder_is_refused_before_any_work(tmp_path):
    grid = quantizing(1)
    with pytest.raises(OSError, match=str(tmp_path)):
        FedPAQ(clients_per_round=1, checkpoint=tmp_path).start(grid, record(w=np.zeros(4, np.float32)))
    assert grid.sent == []


def test_a_run_begins_with_its_settings_and_how_to_go_on(tmp_path, caplog):
    with caplog.at_level(logging.INFO, logger="flwr"):
        strategy = FedPAQ(clients_per_round=2, checkpoint=tmp_path / "state", aggregation="weighted")
        strategy.start(quantizing(2), record(w=np.zeros(4, np.float32), n=np.array(1)), num_rounds=1)
    assert (
        "clients_per_round=2, num_clients=2, seed=0, quantizer=any, aggregation=mean weighted by examples"
        in caplog.text
    )
    assert "p=4, 8 bytes of exact arrays, from round 1" in caplog.text
    assert f"run the app again as it is: it goes on from checkpoint={tmp_path / 'state'}" in caplog.text


def test_a_round_without_uploads_asks_the_functions_nothing():
    grid = quantizing(1)
    grid.meddle = lambda _, reply: reply if "client" in reply.content.get("fedpaq", {}) else None
    first = lambda replies, _: MetricRecord({"first": float(replies[0] is not None)})
    strategy = FedPAQ(clients_per_round=1, train_metrics_aggr_fn=first, deadline=0.01, fraction_evaluate=0.0)
    result = strategy.start(grid, record(w=np.zeros(4, np.float32)), num_rounds=1)
    assert result.train_metrics_clientapp[1]["fedpaq-clients-late"] == 1


@pytest.mark.parametrize("accounting", ["fixed-width", "elias"])
def test_bits_that_are_not_sent_cannot_be_charged(accounting):
    with pytest.raises(ConfigError, match=f"^accounting='{accounting}' .* choose accounting='payload'"):
        FedPAQ(clients_per_round=1, cost_model=CostModel(bandwidth=1.0, accounting=accounting))


class Own:
    """A downlink that is none of ours."""

    def open(self, seeds, num_clients, params):
        raise NotImplementedError


@pytest.mark.parametrize("base", [Own, Dense])
def test_a_downlink_that_clients_cannot_read_is_refused(base):
    class Mine(base):
        name = "mine"

    with pytest.raises(ConfigError, match=r"^downlink='mine' cannot be sent .* choose 'dense', fedpaq.Changes"):
        FedPAQ(clients_per_round=1, downlink=Mine())


def test_numbers_of_numpy_make_the_same_run_as_pythons(tmp_path):
    """A checkpoint of one is continued by the other."""
    arrays = record(w=np.linspace(0, 1, 40, dtype=np.float32))
    own = {"clients_per_round": 2, "num_clients": 3, "seed": 5, "min_replies": 1, "max_failed_rounds": 2}
    shares = {"deadline": 0.5, "patience": 2.0, "fraction_evaluate": 0.5, "max_update_norm": 64.0}
    theirs = {name: np.int64(value) for name, value in own.items()}
    theirs |= {name: np.float32(value) for name, value in shares.items()}
    cost = CostModel(bandwidth=np.float32(1e6))
    more = {"gradients_per_client": np.int64(10), "cost_model": cost, "checkpoint": tmp_path / "state"}
    quantizer = Rotated(bits=np.float32(0.5))
    first = FedPAQ(**theirs, **more, quantizer=quantizer)
    first.start(InProcessGrid(drifting_app(quantize_mod(quantizer=quantizer)), 3), arrays, np.int64(1))
    second = FedPAQ(**own, **shares, quantizer="rotated:0.5", checkpoint=tmp_path / "state")
    second.start(InProcessGrid(drifting_app(quantize_mod()), 3), arrays, 2)
    assert len(second.history) == 2


PATHS = [0, 1.5, True, [], {}, ""]


@pytest.mark.parametrize(
    ("name", "bad", "why"),
    [
        *[("checkpoint", bad, "is not a path; write e.g. 'run.ckpt'") for bad in PATHS],
        *[("save", bad, "is not a path; write e.g. 'model.npz'") for bad in PATHS],
        *[("log", bad, "has no add and no __enter__") for bad in (0, {}, [None], [3], np.ones(2))],
        *[("cost_model", bad, "is not a CostModel; e.g.") for bad in (0, {}, "", CostModel)],
        *[("exact", bad, r"is not a pattern of names; write e.g. exact=\['\*run") for bad in (None, 3, [3], [b"x"])],
        *[("train_metrics_aggr_fn", bad, "cannot be called; pass a function") for bad in (0, "", "mean")],
        *[("evaluate_metrics_aggr_fn", bad, "cannot be called; pass a function") for bad in (0, "", "mean")],
        *[("weighted_by_key", bad, "is not text; write e.g. weighted_by_key='my-key'") for bad in (None, 0, [])],
        *[("arrayrecord_key", bad, "is not text") for bad in (None, 0, [])],
        *[("configrecord_key", bad, "is not text") for bad in (None, 0, [])],
    ],
)
def test_settings_of_another_kind_are_refused_by_name(name, bad, why):
    with pytest.raises(ConfigError, match=rf"(?s)^{name}=.* {why}"):
        FedPAQ(clients_per_round=1, **{name: bad})


def test_no_log_may_be_said_in_three_ways_and_an_empty_name_is_none_of_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arrays = record(w=np.zeros(4, np.float32))
    for log in (None, [], ()):
        FedPAQ(clients_per_round=1, log=log).start(quantizing(1), arrays, num_rounds=1)
    with pytest.raises(ConfigError, match=r"log='' names nothing; choose FILE.csv"):
        FedPAQ(clients_per_round=1, log="").start(quantizing(1), arrays, num_rounds=1)
    assert list(Path(tmp_path).iterdir()) == []


def test_one_pattern_of_exact_arrays_need_not_be_in_a_list_and_must_match_something():
    arrays = record(w=np.zeros(4, np.float32), head=np.zeros(2, np.float32))
    strategy = FedPAQ(clients_per_round=1, exact="head*")
    strategy.start(quantizing(1), arrays, num_rounds=1)
    assert strategy.exact == ("head*",)
    with pytest.raises(ConfigError, match=r"exact='haed\*' matches no array of the model; it has w, head"):
        FedPAQ(clients_per_round=1, exact=["head*", "haed*"]).start(quantizing(1), arrays, num_rounds=1)


@pytest.mark.parametrize(
    ("name", "bad", "why"),
    [
        ("timeout", None, "timeout=None is not a number"),
        ("timeout", 0, "timeout=0 is not allowed"),
        ("evaluate_fn", 3, "evaluate_fn=3 cannot be called; pass a function"),
        ("train_config", {"lr": 0.1}, r"train_config={'lr': 0.1} is not a ConfigRecord; write ConfigRecord\({...}\)"),
        ("evaluate_config", 0, "evaluate_config=0 is not a ConfigRecord"),
        ("initial_arrays", {"w": np.zeros(2)}, "initial_arrays of type dict is not an ArrayRecord; write ArrayRecord"),
    ],
)
def test_a_start_with_arguments_of_another_kind_is_refused_before_any_work(name, bad, why):
    grid = quantizing(1)
    with pytest.raises(ConfigError, match=why):
        FedPAQ(clients_per_round=1).start(grid, **{"initial_arrays": record(w=np.zeros(4, np.float32)), name: bad})
    assert grid.sent == []
