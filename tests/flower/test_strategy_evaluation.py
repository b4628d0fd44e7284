"""Evaluation by clients: who is asked, and what becomes of their answers."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict

from fedpaq.flower import FedPAQ
from flower.flower_apps import quantizing, record

pytestmark = pytest.mark.flower


@pytest.mark.parametrize(("fraction", "expected"), [(0.0, 0), (0.1, 1), (0.5, 2), (0.8, 4), (1.0, 5), (7.0, 5)])
def test_a_fraction_of_those_present_evaluates_and_at_least_one(fraction, expected):
    grid, start = quantizing(5), record(w=np.zeros(2, np.float32))
    strategy = FedPAQ(clients_per_round=2, num_clients=5, fraction_evaluate=fraction)
    list(strategy.configure_train(1, start, ConfigRecord(), grid))
    messages = list(strategy.configure_evaluate(1, start, ConfigRecord(), grid))
    assert len(messages) == len({message.metadata.dst_node_id for message in messages}) == expected


def test_failed_evaluations_are_told_and_the_others_count(caplog):
    question = Message(RecordDict(), 1000, "evaluate")
    good = Message(RecordDict({"m": MetricRecord({"loss": 2.0, "num-examples": 3})}), reply_to=question)
    failed = Message(Error(2, "out of memory"), reply_to=question)
    strategy = FedPAQ(clients_per_round=1)
    with caplog.at_level(logging.WARNING, logger="flwr"):
        assert dict(strategy.aggregate_evaluate(4, [failed, good])) == {"loss": 2.0}
    assert "round=4: an evaluation failed: out of memory" in caplog.text
    assert strategy.aggregate_evaluate(4, [failed]) is None
