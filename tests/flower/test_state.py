"""A run that was interrupted ends like one that was not."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import ConfigRecord, MetricRecord

import fedpaq
from fedpaq import CheckpointError
from fedpaq.flower import FedPAQ, quantize_mod
from fedpaq.server.aggregation import ClippedMean
from fedpaq.storage import checkpoint
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
    rounds = [m.content["fedpaq"]["round"] for m in grid.sent if "arrays" in m.content]
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


def test_resume_needs_no_memory_of_node_ids(tmp_path, logistic, config):
    """After a restart Flower's nodes have other ids in another order; the clients are the same."""
    app, start = problem_app(logistic, config), record(params=logistic.initial_params)
    state = tmp_path / "state"
    strategy_of(config, logistic, checkpoint=state).start(InProcessGrid(app, 8), start, num_rounds=2)
    shuffled = InProcessGrid(app, 8, partition_ids=[3, 1, 4, 7, 5, 0, 2, 6])
    result = strategy_of(config, logistic, checkpoint=state).start(shuffled, start, num_rounds=4)
    expected = fedpaq.train(logistic, config, quantizer=fedpaq.LowPrecision(levels=1), executor="sequential")
    np.testing.assert_array_equal(result.arrays["params"].numpy(), expected.params)


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


def test_a_changed_config_is_refused_by_name_rather_than_ignored(tmp_path):
    settings = {"clients_per_round": 1, "fraction_evaluate": 0.0, "checkpoint": tmp_path / "state"}
    start, given = (
        record(w=np.zeros(9, np.float32)),
        ConfigRecord({"lr": 0.4, "tag": b"a", "nan": float("nan")}),
    )
    FedPAQ(**settings).start(quantizing(1), start, num_rounds=1, train_config=given)
    FedPAQ(**settings).start(quantizing(1), start, num_rounds=2, train_config=given)  # now with server-round
    other = ConfigRecord({**given, "lr": 0.1})
    with pytest.raises(CheckpointError, match=r"made with train_config\['lr'\]=0.4, but this run has 0.1"):
        FedPAQ(**settings).start(quantizing(1), start, num_rounds=3, train_config=other)
