"""Settings: FedAvg's arguments are accepted or answered with what replaces them; files are checked before any work."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from flwr.app import MetricRecord

from fedpaq import ConfigError, CostModel
from fedpaq.downlink import Dense
from fedpaq.flower import FedPAQ
from fedpaq.flower.settings import INSTEAD
from flower.flower_apps import quantizing, record

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
