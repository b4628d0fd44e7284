"""Loop: a run that was interrupted ends like one that was not."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import ConfigRecord, MetricRecord

import fedpaq
from fedpaq.flower import FedPAQ, quantize_mod
from flower.flower_apps import drifting_app, problem_app, quantizing, record
from flower.in_process_grid import InProcessGrid

pytestmark = pytest.mark.flower


def strategy_of(config, problem, **settings):
    return FedPAQ(
        clients_per_round=config.clients_per_round,
        num_clients=problem.num_clients,
        seed=config.seed,
        fraction_evaluate=0.0,
        **settings,
    )


class PowerCut(Exception):
    """The server dies."""


def test_a_resumed_run_ends_like_an_uninterrupted_one(tmp_path, logistic, config):
    app, start = problem_app(logistic, config), record(params=logistic.initial_params)
    whole = strategy_of(config, logistic)
    expected = whole.start(InProcessGrid(app, 8), start, num_rounds=4)
    state = tmp_path / "state"

    def cut(server_round, arrays):
        if server_round == 2:
            raise PowerCut
        return MetricRecord({"round": float(server_round)})

    first = strategy_of(config, logistic, checkpoint=state)
    with pytest.raises(PowerCut):
        first.start(InProcessGrid(app, 8), start, num_rounds=4, evaluate_fn=cut)
    assert len(first.history) == 2

    second = strategy_of(config, logistic, checkpoint=state)
    grid = InProcessGrid(app, 8)
    result = second.start(grid, start, num_rounds=4)
    np.testing.assert_array_equal(result.arrays["params"].numpy(), expected.arrays["params"].numpy())
    assert second.history == whole.history
    assert sorted(result.train_metrics_clientapp) == [1, 2, 3, 4]
    assert sorted(result.evaluate_metrics_serverapp) == [0, 1]  # the cut came during round 2's
    rounds = [m.content["fedpaq"]["round"] for m in grid.sent if "fedpaq.model" in m.content]
    assert rounds == [2] * 5 + [3] * 5


def test_a_finished_run_trains_no_further_and_can_be_extended(tmp_path):
    grid = InProcessGrid(drifting_app(quantize_mod(levels=1)), 2)
    start = record(w=np.zeros(9, np.float32), n=np.array(0))
    settings = {"clients_per_round": 2, "fraction_evaluate": 0.0, "checkpoint": tmp_path / "state"}
    done = FedPAQ(**settings).start(grid, start, num_rounds=2)
    sent = len(grid.sent)
    again = FedPAQ(**settings).start(grid, start, num_rounds=2)
    assert len(grid.sent) == sent
    np.testing.assert_array_equal(again.arrays["w"].numpy(), done.arrays["w"].numpy())
    longer = FedPAQ(**settings).start(grid, start, num_rounds=3)
    assert longer.arrays["n"].numpy() == 3  # exact arrays are in the checkpoint too
    assert len(longer.train_metrics_clientapp) == 3


class Halving(FedPAQ):
    """A learning-rate schedule as in Flower's how-to: every second round halves it."""

    def configure_train(self, server_round, arrays, config, grid):
        if server_round % 2 == 0:
            config["lr"] /= 2
        self.rates = [*getattr(self, "rates", []), config["lr"]]
        return super().configure_train(server_round, arrays, config, grid)

    def configure_evaluate(self, server_round, arrays, config, grid):
        config["calls"] = config.get("calls", 0) + 1
        return super().configure_evaluate(server_round, arrays, config, grid)


@pytest.mark.parametrize("cut_at", [1, 2, 3, 4, 5])
def test_a_schedule_and_every_evaluation_survive_an_interruption(tmp_path, cut_at):
    def run(evaluate_fn, **more):
        strategy = Halving(clients_per_round=1, **more)
        configs = {"train_config": ConfigRecord({"lr": 0.4}), "evaluate_config": ConfigRecord({"batches": 3})}
        start = record(w=np.zeros(9, np.float32))
        result = strategy.start(quantizing(1), start, num_rounds=5, evaluate_fn=evaluate_fn, **configs)
        return result, getattr(strategy, "rates", []), configs["evaluate_config"]["calls"]

    def measure(server_round, arrays):
        return MetricRecord({"mean": float(arrays["w"].numpy().mean())})

    def cut(server_round, arrays):
        if server_round == cut_at:
            raise PowerCut
        return measure(server_round, arrays)

    expected, rates, calls = run(measure)
    assert rates == [0.4, 0.2, 0.2, 0.1, 0.1] and calls == 5
    with pytest.raises(PowerCut):
        run(cut, checkpoint=tmp_path / "state")
    result, rates_after, calls_after = run(measure, checkpoint=tmp_path / "state")
    assert rates_after == rates[cut_at:] and calls_after == calls
    np.testing.assert_array_equal(result.arrays["w"].numpy(), expected.arrays["w"].numpy())
    assert result.evaluate_metrics_serverapp == expected.evaluate_metrics_serverapp
    assert result.evaluate_metrics_clientapp == expected.evaluate_metrics_clientapp
    assert sorted(result.evaluate_metrics_clientapp) == [1, 2, 3, 4, 5]


def test_resume_needs_no_memory_of_node_ids(tmp_path, logistic, config):
    """After a restart Flower's nodes have other ids in another order; the clients are the same."""
    app, start = problem_app(logistic, config), record(params=logistic.initial_params)
    state = tmp_path / "state"
    strategy_of(config, logistic, checkpoint=state).start(InProcessGrid(app, 8), start, num_rounds=2)
    shuffled = InProcessGrid(app, 8, partition_ids=[3, 1, 4, 7, 5, 0, 2, 6])
    result = strategy_of(config, logistic, checkpoint=state).start(shuffled, start, num_rounds=4)
    expected = fedpaq.train(logistic, config, quantizer=fedpaq.LowPrecision(levels=1), executor="sequential")
    np.testing.assert_array_equal(result.arrays["params"].numpy(), expected.params)
