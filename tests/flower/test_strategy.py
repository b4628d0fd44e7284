"""The server's half, against real ClientApps in this process."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from flwr.app import ConfigRecord, MetricRecord

import fedpaq
from fedpaq import ConfigError, DivergedError, codec
from fedpaq.flower import FedPAQ, exchange, protocol, quantize_mod
from fedpaq.quantizers import LowPrecision
from fedpaq.randomness import Key, sample_without_replacement
from fedpaq.server.aggregation import TrimmedMean, WeightedMean
from flower.flower_apps import drifting_app, forged, payload_of, problem_app, quantizing, record
from flower.in_process_grid import InProcessGrid
from small_problems import make_problem

pytestmark = pytest.mark.flower


def vector(size=40):
    return record(w=np.zeros(size, np.float32))


def test_a_deployment_makes_the_simulator_s_messages_and_params(problem, config):
    levels = 3
    payloads = {}

    def keep(message, context, call_next):
        reply = call_next(message, context)
        if payload_of(reply) is not None:
            payloads[len(payloads)] = payload_of(reply)
        return reply

    grid = InProcessGrid(problem_app(problem, config, keep, levels=levels), problem.num_clients)
    strategy = FedPAQ(clients_per_round=config.clients_per_round, num_clients=problem.num_clients, seed=config.seed)
    strategy.fraction_evaluate = 0.0
    result = strategy.start(grid, record(params=problem.initial_params), num_rounds=config.num_rounds)

    sizes = []
    expected = fedpaq.train(
        problem,
        config,
        quantizer=LowPrecision(levels),
        executor="sequential",
        callback=lambda record, params: sizes.append(record.payload_bytes),
    )
    np.testing.assert_array_equal(result.arrays["params"].numpy(), expected.params, strict=True)
    sent = [record.metrics["fedpaq-payload-bytes"] for record in strategy.history]
    assert np.cumsum(sent).tolist() == sizes[1:]
    assert len(payloads) == config.num_rounds * config.clients_per_round


@pytest.mark.parametrize("demanded", [None, "rotated:0.5"])
def test_rotated_uploads_of_a_deployment_are_the_simulator_s(problem, config, demanded):
    app = problem_app(problem, config, quantizer="rotated:0.5")
    strategy = FedPAQ(
        clients_per_round=config.clients_per_round,
        num_clients=problem.num_clients,
        seed=config.seed,
        quantizer=demanded,
        max_update_norm=100.0,
        fraction_evaluate=0.0,
    )
    grid = InProcessGrid(app, problem.num_clients)
    result = strategy.start(grid, record(params=problem.initial_params), num_rounds=config.num_rounds)
    expected = fedpaq.train(problem, config, quantizer=fedpaq.Rotated(bits=0.5), executor="sequential")
    np.testing.assert_array_equal(result.arrays["params"].numpy(), expected.params, strict=True)
    sent = sum(record.metrics["fedpaq-payload-bytes"] for record in strategy.history)
    assert sent == expected.final.payload_bytes


@pytest.mark.parametrize("demanded", [None, "rotated:0.5"])
def test_rotated_uploads_are_held_to_the_norm(demanded):
    """Client i moves by 0.1 (i + 1) sqrt(20,000), and q at half a bit is 2.1: 2.5 norms are the most."""
    grid = InProcessGrid(drifting_app(quantize_mod(quantizer="rotated:0.5")), 12)
    most = 0.2 * np.sqrt(20_000)
    strategy = FedPAQ(clients_per_round=12, quantizer=demanded, max_update_norm=float(most), fraction_evaluate=0.0)
    strategy.start(grid, vector(20_000), num_rounds=1)
    assert {0, 1} <= set(strategy.history[0].counted)
    assert {6, 7, 8, 9, 10, 11} <= set(strategy.history[0].rejected)
    assert "the most an honest update can give" in strategy.history[0].rejected[11]


def test_the_draw_is_the_simulator_s_over_client_numbers():
    grid = InProcessGrid(drifting_app(quantize_mod(levels=1)), 6, partition_ids=[5, 4, 3, 2, 1, 0])
    strategy = FedPAQ(clients_per_round=2, num_clients=6, seed=9, fraction_evaluate=0.0)
    strategy.start(grid, vector(), num_rounds=5)
    for round, found in enumerate(strategy.history):
        assert found.asked == sample_without_replacement(Key(seed=9, round=round), 6, 2).tolist()
        assert found.counted == found.asked


def test_exact_arrays_are_averaged_or_taken_from_the_first():
    model = record(w=np.zeros(5, np.float32), running_var=np.ones(2, np.float64), num_batches_tracked=np.array(10))
    grid = InProcessGrid(drifting_app(quantize_mod(levels=1)), 3)
    strategy = FedPAQ(clients_per_round=3, fraction_evaluate=0.0)
    arrays = strategy.start(grid, model, num_rounds=1).arrays
    np.testing.assert_allclose(arrays["running_var"].numpy(), 1 + 0.1 * np.mean([1, 2, 3]), rtol=1e-12)
    assert arrays["num_batches_tracked"].numpy() == 11  # client 0's
    assert strategy.history[0].metrics["fedpaq-exact-bytes"] == 3 * (16 + 8)


def test_half_and_double_precision_models_train_through_a_float32_copy():
    model = record(half=np.ones(3, np.float16), double=np.ones(3, np.float64))
    grid = InProcessGrid(drifting_app(quantize_mod(levels=None)), 2)
    arrays = FedPAQ(clients_per_round=2, fraction_evaluate=0.0).start(grid, model, num_rounds=2).arrays
    assert {name: array.dtype for name, array in arrays.items()} == {"half": "float16", "double": "float64"}
    np.testing.assert_allclose(arrays["double"].numpy(), 1.3, rtol=1e-6)
    np.testing.assert_allclose(arrays["half"].numpy(), 1.3, rtol=2e-3)


def test_quantizing_batch_statistics_would_make_variances_negative():
    """Why they are exact by default: with one level a coordinate moves by the whole norm or not at all."""
    model = record(w=np.zeros(50, np.float32), running_var=np.full(50, 0.2, np.float32))
    grid = InProcessGrid(drifting_app(quantize_mod(levels=1)), 1)
    kept = FedPAQ(clients_per_round=1, fraction_evaluate=0.0).start(grid, model, num_rounds=1)
    assert kept.arrays["running_var"].numpy().min() > 0
    strategy = FedPAQ(clients_per_round=1, exact=(), fraction_evaluate=0.0)
    noisy = strategy.start(grid, model, num_rounds=1).arrays["running_var"].numpy()
    steps = np.abs(noisy - 0.2)
    assert set(np.round(steps / (0.1 * 10), 4)) <= {0.0, 1.0}  # the norm of 100 steps of 0.1 is 1


def bad_payloads(good: bytes, dimension: int) -> dict[str, bytes]:
    """One payload of each kind of damage."""
    rng = np.random.default_rng(1)
    nan_norm = bytearray(good)
    at = good.index(np.float32(codec.read_header(good).norms[0]).tobytes())
    nan_norm[at : at + 4] = np.float32(np.nan).tobytes()
    other = LowPrecision(levels=1).quantize(np.ones(dimension + 1, np.float32), key=Key(seed=0))
    return {
        "truncated": good[:-3],
        "random": rng.bytes(200),
        "empty": b"\0",
        "wrong dimension": codec.encode(other),
        "NaN norm": bytes(nan_norm),
        "oversized": good + bytes(10**6),
    }


@pytest.mark.parametrize("kind", ["truncated", "random", "empty", "wrong dimension", "NaN norm", "oversized"])
def test_a_bad_payload_is_dropped_by_name_and_the_rest_counts(kind, config, caplog):
    problem = make_problem("logistic")
    config = fedpaq.FedPAQConfig(**{**config.to_dict(), "clients_per_round": 8})
    grid = InProcessGrid(problem_app(problem, config), 8)

    def meddle(client, reply):
        payload = payload_of(reply)
        if client != 3 or payload is None:
            return reply
        return forged(reply, bad_payloads(payload, problem.dimension)[kind])

    grid.meddle = meddle
    strategy = FedPAQ(clients_per_round=8, seed=config.seed, fraction_evaluate=0.0)
    with caplog.at_level("WARNING", logger="flwr"):
        result = strategy.start(grid, record(params=problem.initial_params), num_rounds=2)
    assert [list(found.rejected) for found in strategy.history] == [[3], [3]]
    assert "client=3 rejected" in caplog.text
    np.testing.assert_array_equal(
        result.arrays["params"].numpy(), trained_on(problem, config, strategy.history), strict=True
    )


def trained_on(problem, config, history, levels=1):
    """Train on exactly the replies that counted, with the library's own pieces."""
    params = problem.initial_params
    for round, found in enumerate(history):
        total = np.zeros(problem.dimension)
        for client in found.counted:
            local = fedpaq.clients.train_one_client(problem, config, round=round, client=client, params=params)
            key = Key(seed=config.seed, round=round, client=client)
            LowPrecision(levels).quantize(local - params, key=key).add_to(total)
        if found.counted:
            params = (params + total / len(found.counted)).astype(np.float32)
    return params


def test_a_client_that_raises_or_is_late_does_not_stop_the_run(config, caplog):
    problem = make_problem("logistic")
    config = fedpaq.FedPAQConfig(**{**config.to_dict(), "clients_per_round": 4})

    def clumsy(message, context, call_next):
        if context.node_config["partition-id"] == 1 and protocol.MODEL in message.content:
            raise RuntimeError("disk on fire")
        return call_next(message, context)

    grid = InProcessGrid(problem_app(problem, config, clumsy), 4)
    grid.meddle = lambda client, reply: None if client == 2 and payload_of(reply) else reply
    strategy = FedPAQ(clients_per_round=4, seed=config.seed, deadline=0.1, fraction_evaluate=0.0)
    with caplog.at_level("WARNING", logger="flwr"):
        result = strategy.start(grid, record(params=problem.initial_params), num_rounds=2)
    for found in strategy.history:
        assert (found.counted, found.late) == ([0, 3], [2])
        assert "disk on fire" in found.rejected[1]
        assert found.metrics["fedpaq-clients-asked"] == 4
    assert "client=2 did not answer in time" in caplog.text
    np.testing.assert_array_equal(
        result.arrays["params"].numpy(), trained_on(problem, config, strategy.history), strict=True
    )


def test_too_few_replies_leave_the_model_as_it_is(caplog):
    grid = InProcessGrid(drifting_app(quantize_mod(levels=1)), 3)
    grid.meddle = lambda client, reply: None if client and payload_of(reply) else reply
    strategy = FedPAQ(clients_per_round=3, min_replies=2, deadline=0.05, fraction_evaluate=0.0)
    result = strategy.start(grid, vector(), num_rounds=1)
    assert not result.arrays["w"].numpy().any()
    assert "min_replies=2; the model stays as it is" in caplog.text


def test_a_node_that_left_is_not_drawn():
    grid = InProcessGrid(drifting_app(quantize_mod(levels=1)), 4)
    strategy = FedPAQ(clients_per_round=2, num_clients=4, patience=0.05, fraction_evaluate=0.0)
    strategy.start(grid, vector(), num_rounds=1)
    grid.offline = {0, 1}
    for server_round in range(2, 6):
        list(strategy.configure_train(server_round, vector(), ConfigRecord(), grid))
        assert list(strategy._open.asked) == [2, 3]
    strategy.patience = 1e9  # those that left are awaited once, not in every round
    grid.offline = {0}
    list(strategy.configure_train(6, vector(), ConfigRecord(), grid))
    assert len(strategy._roster.present(grid)) == 3  # one came back


def test_a_restarted_node_takes_over_its_client(caplog):
    grid = InProcessGrid(drifting_app(quantize_mod(levels=1)), 3, partition_ids=[0, 1, 1])
    grid.offline = {2}
    strategy = FedPAQ(clients_per_round=2, fraction_evaluate=0.0)
    strategy.start(grid, vector(), num_rounds=1)
    grid.offline = {1}
    list(strategy.configure_train(2, vector(), ConfigRecord(), grid))
    assert [message.metadata.dst_node_id for message in strategy._open.asked.values()] == [1000, 1002]
    assert "client=1 is now node=1002" in caplog.text


def test_two_nodes_with_one_partition_id_are_told(caplog):
    grid = InProcessGrid(drifting_app(quantize_mod(levels=1)), 3, partition_ids=[0, 1, 1])
    FedPAQ(clients_per_round=2, fraction_evaluate=0.0).start(grid, vector(), num_rounds=1)
    assert "client=1 is already node=1001, which is connected; give every SuperNode its own partition-id" in caplog.text


def test_without_partition_ids_node_ids_stand_in_with_a_warning(caplog):
    grid = InProcessGrid(drifting_app(quantize_mod(levels=1)), 2, partition_ids=[None, None])
    strategy = FedPAQ(clients_per_round=2, fraction_evaluate=0.0)
    strategy.start(grid, vector(), num_rounds=1)
    assert strategy.history[0].counted == [1000, 1001]
    assert "has no partition-id" in caplog.text


def test_a_large_update_is_refused_before_it_is_decoded():
    grid = InProcessGrid(drifting_app(quantize_mod(levels=1)), 3)  # norms 0.1 sqrt(40) (i + 1)
    strategy = FedPAQ(clients_per_round=3, max_update_norm=1.5, fraction_evaluate=0.0)
    strategy.start(grid, vector(), num_rounds=1)
    assert strategy.history[0].counted == [0, 1]
    assert "exceeds max_update_norm=1.5" in strategy.history[0].rejected[2]


@pytest.mark.parametrize("levels", [1, 10, None])
def test_a_small_norm_cannot_hide_a_large_step(levels):
    dimension = 10_000
    lie = fedpaq.quantizers.QuantizedMessage(
        np.full(dimension, 10 if levels == 10 else 1, np.int8), np.float32([1.0]), levels or 1
    )
    if levels is None:
        lie = fedpaq.quantizers.RawMessage(np.ones(dimension, np.float32))
    grid = InProcessGrid(drifting_app(quantize_mod(levels=levels)), 2)
    honest = record(w=np.zeros(dimension, np.float32))
    grid.meddle = lambda client, reply: forged(reply, codec.encode(lie)) if client == 1 and payload_of(reply) else reply
    strategy = FedPAQ(clients_per_round=2, max_update_norm=10.1, fraction_evaluate=0.0)
    strategy.start(grid, honest, num_rounds=1)
    assert strategy.history[0].counted == [0]
    assert "norm=100" in strategy.history[0].rejected[1]


def test_the_strategy_can_demand_a_quantizer():
    grid = InProcessGrid(drifting_app(quantize_mod(levels=2)), 2)
    strategy = FedPAQ(clients_per_round=2, quantizer=LowPrecision(1), fraction_evaluate=0.0)
    strategy.start(grid, vector(), num_rounds=1)
    assert "demands low-precision(s=1); give quantize_mod the same" in strategy.history[0].rejected[0]


def test_a_mean_beyond_float32_ends_the_run_by_name():
    huge = fedpaq.quantizers.QuantizedMessage(np.ones(40, np.int8), np.float32([3e38]), 1)
    grid = InProcessGrid(drifting_app(quantize_mod(levels=1)), 1)
    grid.meddle = lambda _, reply: forged(reply, codec.encode(huge)) if payload_of(reply) else reply
    strategy = FedPAQ(clients_per_round=1, fraction_evaluate=0.0)
    with pytest.raises(DivergedError, match="max_update_norm"):
        strategy.start(grid, vector(), num_rounds=2)


def test_a_robust_aggregation_replaces_the_mean():
    grid = InProcessGrid(drifting_app(quantize_mod(levels=None)), 5)  # moves 0.1 ... 0.5
    strategy = FedPAQ(clients_per_round=5, aggregation=TrimmedMean(trim=0.4), fraction_evaluate=0.0)
    arrays = strategy.start(grid, vector(), num_rounds=1).arrays
    np.testing.assert_allclose(arrays["w"].numpy(), 0.3, rtol=1e-6)


def test_a_liar_cannot_set_the_batch_statistics_under_a_robust_aggregation():
    model = record(w=np.zeros(5, np.float32), running_var=np.ones(2, np.float32))
    grid = InProcessGrid(drifting_app(quantize_mod(levels=None)), 5)
    lie = np.full(2, -1e30, np.float32).tobytes()
    lies = lambda client, reply: client == 4 and payload_of(reply)
    grid.meddle = lambda *who: forged(who[1], payload_of(who[1]), lie) if lies(*who) else who[1]
    strategy = FedPAQ(clients_per_round=5, aggregation="trimmed", fraction_evaluate=0.0)
    arrays = strategy.start(grid, model, num_rounds=1).arrays
    np.testing.assert_allclose(arrays["running_var"].numpy(), 1.2, rtol=1e-6)  # of 1.1, 1.2, 1.3; 1.4 goes with the lie


def test_metrics_reach_flower_s_result():
    cost_model = fedpaq.CostModel(bandwidth=8000.0)
    grid = InProcessGrid(drifting_app(quantize_mod(levels=1)), 4)
    strategy = FedPAQ(clients_per_round=4, cost_model=cost_model)
    seen = []
    result = strategy.start(
        grid,
        vector(),
        num_rounds=2,
        evaluate_fn=lambda at, arrays: seen.append(at) or MetricRecord({"loss": float(at)}),
    )
    train = result.train_metrics_clientapp[2]
    assert train["train-loss"] == pytest.approx((0 * 1 + 1 * 2 + 2 * 3 + 3 * 4) / 10)  # by num-examples
    assert train["fedpaq-float32-bytes"] == 4 * 4 * 40
    assert train["fedpaq-times-smaller"] == train["fedpaq-float32-bytes"] / train["fedpaq-payload-bytes"]
    assert train["fedpaq-modelled-seconds"] == 8 * train["fedpaq-payload-bytes"] / 8000.0
    assert result.evaluate_metrics_clientapp[1]["client"] == 1.5
    assert result.evaluate_metrics_serverapp[2]["loss"] == 2.0
    assert seen == [0, 1, 2]


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"downlink_bandwidth": 1e3, "round_seconds": 3.0, "shared_uplink": False, "shared_downlink": False},
        {"downlink_bandwidth": 1e3, "slow_share": 0.5, "slow_factor": 4.0},
    ],
)
def test_the_modelled_time_is_the_simulator_s(logistic, config, more, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPAQ_CACHE", str(tmp_path))
    cost_model = fedpaq.CostModel.from_ratio(100, **more)
    downlink = fedpaq.Changes("rotated:2")  # dense downloads have no frame on Flower
    grid = InProcessGrid(problem_app(logistic, config), logistic.num_clients)
    strategy = FedPAQ(
        clients_per_round=config.clients_per_round,
        num_clients=logistic.num_clients,
        seed=config.seed,
        cost_model=cost_model,
        gradients_per_client=config.local_steps * config.batch_size,
        downlink=downlink,
        fraction_evaluate=0.0,
    )
    strategy.start(grid, record(params=logistic.initial_params), num_rounds=config.num_rounds)
    modelled = sum(found.metrics["fedpaq-modelled-seconds"] for found in strategy.history)
    expected = fedpaq.train(
        logistic, config, quantizer=LowPrecision(1), cost_model=cost_model, downlink=downlink, executor="sequential"
    )
    assert modelled == pytest.approx(expected.final.seconds, rel=1e-12)


def test_flower_s_own_loop_can_drive_the_strategy():
    from flwr.serverapp.strategy import Strategy

    grid = InProcessGrid(drifting_app(quantize_mod(levels=1)), 3)
    ours = FedPAQ(clients_per_round=3).start(grid, vector(), num_rounds=3)
    theirs_strategy = FedPAQ(clients_per_round=3)
    theirs_strategy.summary = lambda: None
    theirs = Strategy.start(theirs_strategy, grid, vector(), num_rounds=3)
    np.testing.assert_array_equal(ours.arrays["w"].numpy(), theirs.arrays["w"].numpy())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clients_per_round": 0}, "clients_per_round=0"),
        ({"clients_per_round": 3, "num_clients": 2}, "num_clients=2"),
        ({"clients_per_round": 3, "min_replies": 4}, "min_replies=4"),
        ({"clients_per_round": 3, "deadline": 0}, "deadline=0"),
        ({"clients_per_round": 3, "max_update_norm": -1.0}, "max_update_norm=-1"),
        ({"clients_per_round": 3, "seed": -1}, "seed=-1"),
    ],
)
def test_settings_are_checked_by_name(settings, message):
    with pytest.raises(ConfigError, match=message):
        FedPAQ(**settings)


def test_an_initial_model_that_is_not_finite_is_refused():
    strategy = FedPAQ(clients_per_round=1)
    with pytest.raises(ConfigError, match="'w' of the initial model holds NaN"):
        strategy.start(InProcessGrid(drifting_app(), 1), record(w=np.float32([np.nan])))


def test_a_reply_that_flower_cannot_unpack_is_one_client_s_fault():
    grid = InProcessGrid(drifting_app(quantize_mod(levels=1)), 2)
    pull = grid.pull_messages

    def broken(message_ids):
        replies = pull(message_ids)
        if any(reply.has_content() and payload_of(reply) for reply in replies):
            broken.count += 1
            if broken.count == 1:
                raise ValueError("Unexpected set of `children`")
        return replies

    broken.count = 0
    grid.pull_messages = broken
    strategy = FedPAQ(clients_per_round=2, fraction_evaluate=0.0)
    strategy.start(grid, vector(), num_rounds=1)
    assert strategy.history[0].counted == [1]
    assert "cannot be unpacked (ValueError" in strategy.history[0].rejected[0]


def test_every_message_of_a_round_shares_one_packed_model():
    grid = InProcessGrid(drifting_app(quantize_mod(levels=1)), 3)
    FedPAQ(clients_per_round=3, fraction_evaluate=0.0).start(grid, vector(), num_rounds=1)
    models = [message.content[protocol.MODEL] for message in grid.sent if protocol.MODEL in message.content]
    assert len(models) == 3
    assert len({id(model) for model in models}) == 1  # equal objects are kept once by the SuperLink


@pytest.mark.parametrize("downlink", ["dense", "rotated:2"])
def test_long_models_and_payloads_travel_as_arrays_with_the_same_result(downlink, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPAQ_CACHE", str(tmp_path))
    ended = []
    for most in (protocol.MOST_IN_RECORD, -1):
        monkeypatch.setattr(protocol, "MOST_IN_RECORD", most)
        grid = InProcessGrid(drifting_app(quantize_mod(levels=1)), 3)
        strategy = FedPAQ(clients_per_round=2, downlink=downlink)
        result = strategy.start(grid, vector(), num_rounds=3)
        ended.append(result.arrays["w"].numpy())
        as_arrays = [bool(message.content.array_records) for message in grid.sent if "config" in message.content]
        assert set(as_arrays) <= ({True, False} if most > 0 and downlink == "dense" else {most < 0})
        assert [len(found.counted) for found in strategy.history] == [2, 2, 2]
    np.testing.assert_array_equal(*ended)


def test_closing_a_round_takes_memory_for_the_model_not_for_the_clients():
    dimension, clients = 300_000, 40
    grid = InProcessGrid(drifting_app(quantize_mod(levels=1)), clients)
    strategy = FedPAQ(clients_per_round=clients, fraction_evaluate=0.0)
    start = record(w=np.zeros(dimension, np.float32))
    messages = list(strategy.configure_train(1, start, ConfigRecord(), grid))
    replies = exchange.ask(grid, messages, 60.0)
    tracemalloc.start()
    strategy.aggregate_train(1, replies)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(strategy.history[0].counted) == clients
    assert peak < 60 * dimension  # float32 updates of all clients would take 160 bytes a parameter


def test_closing_a_round_that_was_not_opened_says_what_to_call_first():
    strategy = FedPAQ(clients_per_round=1)
    with pytest.raises(ConfigError, match="call start, or configure_train first"):
        strategy.aggregate_train(1, [])
    list(strategy.configure_train(1, record(w=np.zeros(2, np.float32)), ConfigRecord(), quantizing(1)))
    with pytest.raises(ConfigError, match="server_round=2 was not opened"):
        strategy.aggregate_train(2, [])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("patience", -1.0),
        ("fraction_evaluate", float("nan")),
        ("gradients_per_client", 0),
        ("deadline", "soon"),
        ("max_failed_rounds", 0),
    ],
)
def test_further_settings_are_checked_by_name(name, value):
    with pytest.raises(ConfigError, match=f"^{name}="):
        FedPAQ(clients_per_round=2, **{name: value})


def losing(grid, lost):
    """Let ``grid`` lose the uploads of the rounds in ``lost``."""
    grid.meddle = lambda _, reply: (
        None if payload_of(reply) and grid.sent[-1].content["config"]["server-round"] in lost else reply
    )
    return grid


def test_a_run_in_which_no_upload_counts_fails_and_says_why():
    app = drifting_app(quantize_mod(levels=1))

    def two_models(message, context, call_next):
        reply = call_next(message, context)
        reply.content["second"] = record(w=np.zeros(3, np.float32))
        return reply

    app = drifting_app(quantize_mod(levels=1), two_models)
    strategy = FedPAQ(clients_per_round=2, fraction_evaluate=0.0)
    with pytest.raises(ConfigError, match="max_failed_rounds=3 rounds in a row") as failed:
        strategy.start(InProcessGrid(app, 2), vector(), num_rounds=9)
    assert str(failed.value).startswith("round=3: 0 replies count, min_replies=1;")
    assert "client=0 rejected: the client failed" in str(failed.value)
    assert "holds 2 ArrayRecords" in str(failed.value)


def test_a_deadline_shorter_than_training_is_named():
    grid = losing(quantizing(2), lost=range(1, 9))
    strategy = FedPAQ(clients_per_round=2, max_failed_rounds=1, fraction_evaluate=0.0, deadline=0.01)
    with pytest.raises(ConfigError, match="client=0 did not answer in time"):
        strategy.start(grid, vector(), num_rounds=3)


def test_only_rounds_in_a_row_end_a_run():
    strategy = FedPAQ(clients_per_round=2, max_failed_rounds=2, fraction_evaluate=0.0, deadline=0.01)
    strategy.start(losing(quantizing(2), lost={1, 3, 5}), vector(), num_rounds=6)
    assert [len(found.counted) for found in strategy.history] == [0, 2, 0, 2, 0, 2]


def test_the_quantizer_may_be_text():
    assert FedPAQ(clients_per_round=1, quantizer="low-precision:1").quantizer == LowPrecision(1)
    with pytest.raises(ConfigError, match="low-precison"):
        FedPAQ(clients_per_round=1, quantizer="low-precison:1")


def test_the_mean_is_uniform_whatever_the_number_of_examples():
    grid = InProcessGrid(drifting_app(quantize_mod(levels=None)), 3)  # moves 0.1 (i + 1), has i + 1 examples
    result = FedPAQ(clients_per_round=3, fraction_evaluate=0.0).start(grid, vector(), num_rounds=1)
    np.testing.assert_allclose(result.arrays["w"].numpy(), 0.2, rtol=1e-6)


def test_the_mean_may_be_weighted_by_examples_exact_arrays_included():
    model = record(w=np.zeros(40, np.float32), running_mean=np.zeros(2, np.float32))
    grid = InProcessGrid(drifting_app(quantize_mod(levels=None)), 3)
    strategy = FedPAQ(clients_per_round=3, fraction_evaluate=0.0, aggregation="weighted")
    arrays = strategy.start(grid, model, num_rounds=1).arrays
    np.testing.assert_allclose(arrays["w"].numpy(), 0.1 * (1 + 4 + 9) / 6, rtol=1e-6)
    np.testing.assert_allclose(arrays["running_mean"].numpy(), 0.1 * (1 + 4 + 9) / 6, rtol=1e-6)


def test_a_weighted_mean_refuses_clients_without_a_weight():
    strategy = FedPAQ(clients_per_round=2, fraction_evaluate=0.0, aggregation="weighted", weighted_by_key="n")
    with pytest.raises(ConfigError, match="client=0 rejected: n=None in the metrics of the reply cannot weight"):
        strategy.start(quantizing(2), vector(), num_rounds=3)


def test_a_weighted_deployment_is_the_weighted_simulation(config):
    uneven = fedpaq.problems.Partition(np.arange(160), np.array([0, 3, 33, 42, 43, 57, 62, 122, 160]))
    problem = make_problem("logistic", partition=uneven)
    app = problem_app(problem, config, quantizer="rotated:0.5")
    settings = {"clients_per_round": config.clients_per_round, "num_clients": 8, "seed": config.seed}
    strategy = FedPAQ(**settings, aggregation="weighted", fraction_evaluate=0.0)
    result = strategy.start(InProcessGrid(app, 8), record(params=problem.initial_params), num_rounds=config.num_rounds)
    simulated = fedpaq.train(
        problem, config, quantizer=fedpaq.Rotated(bits=0.5), aggregation=WeightedMean(), executor="sequential"
    )
    np.testing.assert_array_equal(result.arrays["params"].numpy(), simulated.params, strict=True)
    uniform = fedpaq.train(problem, config, quantizer=fedpaq.Rotated(bits=0.5), executor="sequential")
    assert not np.array_equal(uniform.params, simulated.params)
