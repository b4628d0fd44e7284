"""Models changed outside FedPAQ: subclasses, and Flower's wrappers for central differential privacy."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from flwr.app import ArrayRecord, MetricRecord
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    Strategy,
)

from fedpaq import ConfigError
from fedpaq.flower import FedPAQ, quantize_mod
from flower.flower_apps import drifting_app, quantizing, record
from flower.in_process_grid import InProcessGrid

pytestmark = pytest.mark.flower


def vector(size=40):
    return record(w=np.zeros(size, np.float32), running_mean=np.zeros(2, np.float32))


class Resetting(FedPAQ):
    """The server throws the mean away and puts sevens in its place."""

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        sevens = {name: np.full_like(array.numpy(), 7) for name, array in arrays.items()}
        return record(**sevens), MetricRecord({**metrics, "mine": float(server_round)})


def models_sent(grid):
    """The numbers of the model in each train message."""
    packed = [m.content["fedpaq.model"]["fedpaq.packed"] for m in grid.sent if "fedpaq.model" in m.content]
    return [np.frombuffer(data, np.float32) for data in packed]


@pytest.mark.parametrize("loop", [FedPAQ.start, Strategy.start], ids=["own loop", "Flower's loop"])
def test_clients_train_on_the_model_that_a_subclass_returned(loop, caplog):
    grid, seen = quantizing(2), []
    strategy = Resetting(clients_per_round=2, fraction_evaluate=0.0)
    with caplog.at_level(logging.INFO, logger="flwr"):
        result = loop(
            strategy,
            grid,
            vector(),
            num_rounds=3,
            evaluate_fn=lambda at, arrays: seen.append(arrays["w"].numpy().max()),
        )
    first, *later = models_sent(grid)[::2]
    assert (first == 0).all() and len(later) == 2
    for model in later:
        np.testing.assert_array_equal(model, np.full(42, 7, np.float32))
    assert seen == [0, 7, 7, 7]
    assert (result.arrays["running_mean"].numpy() == 7).all()
    assert result.train_metrics_clientapp[2]["mine"] == 2.0
    assert caplog.text.count("the model was changed outside FedPAQ's mean") == 1


def test_a_changed_model_is_in_the_checkpoint(tmp_path):
    settings = {"clients_per_round": 2, "fraction_evaluate": 0.0, "checkpoint": tmp_path / "state"}
    Resetting(**settings).start(quantizing(2), vector(), num_rounds=1)
    grid = quantizing(2)
    Resetting(**settings).start(grid, vector(), num_rounds=2)
    assert [(model == 7).all() for model in models_sent(grid)] == [True, True]


def test_a_subclass_that_returns_no_model_keeps_the_one_before():
    class Refusing(FedPAQ):
        def aggregate_train(self, server_round, replies):
            super().aggregate_train(server_round, replies)
            return None, None

    result = Refusing(clients_per_round=2, fraction_evaluate=0.0).start(quantizing(2), vector(), num_rounds=2)
    assert (result.arrays["w"].numpy() == 0).all()


def test_a_model_from_outside_must_fit_and_be_finite():
    class Breaking(FedPAQ):
        def aggregate_train(self, server_round, replies):
            arrays, metrics = super().aggregate_train(server_round, replies)
            arrays["w"] = record(w=np.full(40, np.nan, np.float32))["w"]
            return arrays, metrics

    with pytest.raises(ConfigError, match="'w' of the model given to the strategy holds NaN"):
        Breaking(clients_per_round=1, fraction_evaluate=0.0).start(quantizing(1), vector(), num_rounds=1)


def test_the_float32_copy_of_a_half_precision_model_is_not_rounded_on_the_way():
    """Steps of 1/4096 are lost in float16 beside 1; the server's own copy keeps them."""
    app = drifting_app(quantize_mod(levels=None))
    strategy = FedPAQ(clients_per_round=1, fraction_evaluate=0.0)
    strategy.start(InProcessGrid(app, 1), record(w=np.ones(2, np.float16)), num_rounds=1)
    copy = strategy._state.params + np.float32(1 / 4096)
    strategy._state.params = copy
    assert not strategy._state.adopt(strategy._state.record())
    np.testing.assert_array_equal(strategy._state.params, copy)


def clipped(strategy, noise_multiplier, clipping_norm=1.0):
    return DifferentialPrivacyClientSideFixedClipping(
        strategy, noise_multiplier, clipping_norm=clipping_norm, num_sampled_clients=2
    )


def test_central_privacy_noise_is_in_the_model_that_clients_train_on():
    grid = InProcessGrid(drifting_app(quantize_mod(levels=1), fixedclipping_mod), 2)
    wrapper = clipped(FedPAQ(clients_per_round=2, fraction_evaluate=0.0), noise_multiplier=1000.0)
    result = wrapper.start(grid, record(w=np.zeros(400, np.float32)), num_rounds=2)
    trained_on = models_sent(grid)[-1]
    assert 400 < trained_on.std() < 600  # 1000 * 1 / 2 clients; 100 is more than 5 standard errors
    assert np.abs(result.arrays["w"].numpy()).max() > 1000  # ruined, as with FedAvg


def test_clipping_happens_before_quantizing():
    grid = InProcessGrid(drifting_app(quantize_mod(levels=None), fixedclipping_mod), 2)
    wrapper = clipped(FedPAQ(clients_per_round=2, fraction_evaluate=0.0), 0.0, clipping_norm=0.5)
    result = wrapper.start(grid, record(w=np.zeros(400, np.float32)), num_rounds=1)
    assert np.linalg.norm(result.arrays["w"].numpy()) == pytest.approx(0.5, rel=1e-5)  # without: 3.0


def test_local_noise_is_added_before_quantizing():
    noisy = LocalDpMod(clipping_norm=0.5, sensitivity=1.0, epsilon=1.0, delta=1.25 * np.exp(-0.5))  # stdev 1
    grid = InProcessGrid(drifting_app(quantize_mod(levels=None), noisy), 1)
    strategy = FedPAQ(clients_per_round=1, fraction_evaluate=0.0)
    result = strategy.start(grid, record(w=np.zeros(400, np.float32)), num_rounds=1)
    assert result.arrays["w"].numpy().std() == pytest.approx(1.0, abs=0.2)  # 5 standard errors are 0.18


@pytest.mark.parametrize("mod", [fixedclipping_mod, LocalDpMod(1.0, 1.0, 1.0, 0.1)])
def test_the_wrong_order_of_mods_is_named(mod):
    grid = InProcessGrid(drifting_app(mod, quantize_mod(levels=1)), 2)
    with pytest.raises(ConfigError, match="this mod comes before quantize_mod, which must be the first") as refused:
        FedPAQ(clients_per_round=2).start(grid, vector(), num_rounds=1)
    assert getattr(mod, "__name__", "LocalDpMod") in str(refused.value)
    assert "missing" not in str(refused.value)


def test_adaptive_clipping_works_and_its_norm_moves():
    grid = InProcessGrid(drifting_app(quantize_mod(levels=None), adaptiveclipping_mod), 2)
    strategy = FedPAQ(clients_per_round=2, fraction_evaluate=0.0)
    wrapper = DifferentialPrivacyClientSideAdaptiveClipping(
        strategy, noise_multiplier=0.01, num_sampled_clients=2, initial_clipping_norm=0.5
    )
    result = wrapper.start(grid, record(w=np.zeros(400, np.float32)), num_rounds=2)
    moved = np.linalg.norm(result.arrays["w"].numpy())
    assert 0.5 < moved < 1.5  # clipped in both rounds: without, 6.0; the noise adds about 0.1
    assert wrapper.clipping_norm != 0.5


def test_server_side_adaptive_clipping_is_refused_before_any_work():
    grid = quantizing(2)
    wrapper = DifferentialPrivacyServerSideAdaptiveClipping(FedPAQ(clients_per_round=2), 0.01, 2)
    with pytest.raises(ConfigError, match="server-side clipping cannot read"):
        wrapper.start(grid, vector(), num_rounds=1)
    assert grid.sent == []


@pytest.mark.parametrize("settings", [{"save": "model.npz"}, {"log": "rows.csv"}])
def test_what_only_fedpaq_s_own_loop_can_do_is_refused_in_another(settings, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wrapper = clipped(FedPAQ(clients_per_round=2, **settings), 1.0)
    with pytest.raises(ConfigError, match="works with FedPAQ's own start only"):
        wrapper.start(quantizing(2), vector(), num_rounds=1)


def test_server_side_clipping_is_refused_before_any_work():
    grid = quantizing(2)
    wrapper = DifferentialPrivacyServerSideFixedClipping(FedPAQ(clients_per_round=2), 1.0, 1.0, 2)
    with pytest.raises(ConfigError, match="server-side clipping cannot read; use DifferentialPrivacyClientSide"):
        wrapper.start(grid, vector(), num_rounds=1)
    assert grid.sent == []


def test_a_checkpoint_inside_another_strategy_is_refused(tmp_path):
    wrapper = clipped(FedPAQ(clients_per_round=2, checkpoint=tmp_path / "state"), 1.0)
    with pytest.raises(ConfigError, match=r"state' works with FedPAQ's own start only"):
        wrapper.start(quantizing(2), vector(), num_rounds=1)


def test_a_strategy_that_another_loop_drives_twice_begins_anew():
    strategy = FedPAQ(clients_per_round=2, fraction_evaluate=0.0)
    first = Strategy.start(strategy, quantizing(2), vector(), num_rounds=2)
    again = Strategy.start(strategy, quantizing(2), vector(), num_rounds=2)
    np.testing.assert_array_equal(again.arrays["w"].numpy(), first.arrays["w"].numpy())
    assert len(strategy.history) == 2 and isinstance(again.arrays, ArrayRecord)
