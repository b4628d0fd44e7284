"""Algorithm 1: special cases, executors, sweeps, divergence, bad input."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

import fedpaq
from fedpaq import codec
from fedpaq.clients import Vectorised
from fedpaq.clients.dense import Dense
from fedpaq.errors import ConfigError, DivergedError
from fedpaq.server.aggregation import TrimmedMean
from fedpaq.server.mean import add_messages
from small_problems import make_problem


def test_with_identity_all_clients_one_step_full_batches_it_is_gradient_descent(problem):
    config = fedpaq.FedPAQConfig(
        clients_per_round=problem.num_clients, local_steps=1, total_steps=10, batch_size=None, step_size=0.2
    )
    params = torch.from_numpy(problem.initial_params).double()
    inputs, targets = problem.inputs.double(), problem.targets
    targets = targets.double() if targets.is_floating_point() else targets
    problem.model.double()
    try:
        for _ in range(10):
            params.requires_grad_(True)
            (gradient,) = torch.autograd.grad(problem.objective(params, inputs, targets), params)
            params = params.detach() - 0.2 * gradient
    finally:
        problem.model.float()
    for executor in ("sequential", "vectorised"):
        history = fedpaq.train(problem, config, executor=executor)
        assert np.abs(history.params - params.numpy()).max() < 1e-6


def test_quantizer_downlink_and_aggregation_may_be_given_as_text(problem, config):
    as_text = {"quantizer": "low-precision:2", "downlink": "rotated:2", "aggregation": "trimmed"}
    as_objects = {
        "quantizer": fedpaq.LowPrecision(levels=2),
        "downlink": fedpaq.Changes(fedpaq.Rotated(bits=2)),
        "aggregation": TrimmedMean(),
    }
    texts, objects = (fedpaq.train(problem, config, **given) for given in (as_text, as_objects))
    assert (texts.quantizer, texts.final.download_bytes) == (objects.quantizer, objects.final.download_bytes)
    np.testing.assert_array_equal(texts.params, objects.params)


@pytest.mark.parametrize("quantizer", [fedpaq.Identity(), fedpaq.LowPrecision(levels=2)])
def test_executors_agree_on_whole_runs(problem, config, quantizer):
    runs = [
        fedpaq.train(problem, config, quantizer=quantizer, executor=executor)
        for executor in ("sequential", "vectorised", Vectorised(chunk_size=2), "auto")
    ]
    for run in runs[1:]:
        assert np.abs(run.params - runs[0].params).max() < 1e-5
        assert run.final.payload_bytes == runs[0].final.payload_bytes
        assert run.final.seconds == runs[0].final.seconds


def test_one_round_is_the_mean_of_the_decoded_payloads(problem, config):
    quantizer = fedpaq.LowPrecision(levels=1)
    one_round = fedpaq.FedPAQConfig(**{**config.to_dict(), "total_steps": config.local_steps})
    history = fedpaq.train(problem, one_round, quantizer=quantizer, executor="sequential")

    from fedpaq.algorithm import draw_participants
    from fedpaq.clients import Sequential, local_work

    participants = draw_participants(problem, [one_round], 0)
    work = next(local_work(problem, [one_round], 0, problem.initial_params[None], participants))
    total = np.zeros(problem.dimension)
    size = 0
    for update, key in zip(Sequential().local_updates(problem, work), work.keys(), strict=True):
        payload = codec.encode(quantizer.quantize(update, key=key))
        codec.accumulate(payload, total, 1.0)
        size += len(payload)
    expected = (problem.initial_params + total / one_round.clients_per_round).astype(np.float32)
    assert np.array_equal(history.params, expected)
    assert history.final.payload_bytes == size


def test_a_sweep_equals_separate_runs_to_the_bit():
    problem = make_problem("mlp")
    configs = [
        fedpaq.FedPAQConfig(
            clients_per_round=5, local_steps=3, total_steps=12, batch_size=4, step_size=step_size, seed=seed
        )
        for step_size in (0.05, 0.2)
        for seed in (1, 2, 3)
    ]
    quantizer = fedpaq.LowPrecision(levels=1)
    together = fedpaq.sweep(problem, configs, quantizer=quantizer, executor="dense")
    for config, history in zip(configs, together, strict=True):
        alone = fedpaq.train(problem, config, quantizer=quantizer, executor="dense")
        assert np.array_equal(alone.params, history.params)
        assert [r.payload_bytes for r in alone.records] == [r.payload_bytes for r in history.records]
        assert [r.seconds for r in alone.records] == [r.seconds for r in history.records]
        assert np.allclose([r.loss for r in alone.records], [r.loss for r in history.records], atol=1e-6)


def test_a_diverged_run_of_a_sweep_ends_and_the_others_go_on():
    problem = make_problem("mlp")
    shape = {"clients_per_round": 5, "local_steps": 3, "total_steps": 12, "batch_size": 4}
    configs = [fedpaq.FedPAQConfig(**shape, step_size=step_size) for step_size in (0.1, 1e25, 0.05)]
    good, bad, other = fedpaq.sweep(problem, configs, quantizer=fedpaq.LowPrecision(levels=1))
    assert bad.diverged is not None and good.diverged is None and other.diverged is None
    assert len(bad.records) < len(good.records) == len(other.records) == 5
    alone = fedpaq.train(problem, configs[2], quantizer=fedpaq.LowPrecision(levels=1))
    assert np.array_equal(alone.params, other.params)


def test_a_diverging_run_stops_with_round_loss_and_advice(logistic):
    config = fedpaq.FedPAQConfig(clients_per_round=2, local_steps=2, total_steps=20, step_size=1e30)
    with pytest.raises(DivergedError, match=r"round=\d+: .*last loss=.*lower step_size=1e\+30"):
        fedpaq.train(logistic, config)


def test_the_same_seed_gives_the_same_run_and_another_seed_another(problem, config):
    quantizer = fedpaq.LowPrecision(levels=1)
    first = fedpaq.train(problem, config, quantizer=quantizer)
    again = fedpaq.train(problem, config, quantizer=quantizer)
    other = fedpaq.train(problem, fedpaq.FedPAQConfig(**{**config.to_dict(), "seed": 99}), quantizer=quantizer)
    assert first.to_json() == again.to_json()
    assert not np.array_equal(first.params, other.params)


def test_training_lowers_the_loss(problem):
    config = fedpaq.FedPAQConfig(clients_per_round=6, local_steps=5, total_steps=100, batch_size=8, step_size=0.1)
    history = fedpaq.train(problem, config, quantizer=fedpaq.LowPrecision(levels=4))
    assert history.final.loss < 0.9 * history.records[0].loss


def test_a_step_size_schedule_is_a_function_of_the_round(logistic):
    seen = []

    def schedule(round):
        seen.append(round)
        return 0.1 / (round + 1)

    config = fedpaq.FedPAQConfig(clients_per_round=2, local_steps=2, total_steps=8, step_size=schedule)
    fedpaq.train(logistic, config)
    assert seen == [0, 1, 2, 3]


def test_the_callback_sees_every_round(logistic, config):
    records = []
    history = fedpaq.train(logistic, config, callback=lambda record, params: records.append((record, params.copy())))
    assert [record for record, _ in records] == history.records
    assert np.array_equal(records[-1][1], history.params)


@pytest.mark.parametrize(("every", "expected"), [(1, [0, 1, 2, 3, 4]), (3, [0, 3, 4]), (0, [4])])
def test_evaluation_can_be_thinned(logistic, config, every, expected):
    history = fedpaq.train(logistic, config, evaluate_every=every)
    assert [record.round for record in history.records if record.loss is not None] == expected


def test_messages_are_added_the_same_way_compiled_or_not(rng, monkeypatch):
    from fedpaq.kernels import numba as compiled

    keys = [fedpaq.Key(seed=1, client=client) for client in range(6)]
    run_of = np.array([0, 0, 1, 1, 1, 0])
    for quantizer in (fedpaq.LowPrecision(1), fedpaq.LowPrecision(200), fedpaq.LowPrecision(3, 1000)):
        updates = rng.standard_normal((6, 9001)).astype(np.float32)
        messages = quantizer.quantize_batch(updates, keys)
        fast, slow = np.zeros((2, 9001)), np.zeros((2, 9001))
        add_messages(messages, run_of, fast)
        with monkeypatch.context() as without:
            without.setattr(compiled, "load", lambda name: None)
            add_messages(messages, run_of, slow)
        assert np.array_equal(fast, slow)


SHAPE = {"clients_per_round": 5, "local_steps": 5, "total_steps": 10, "step_size": 0.1}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"clients_per_round": 0}, r"clients_per_round=0 is out of range"),
        ({"local_steps": 3}, r"total_steps=10 is not a multiple of local_steps=3.*e\.g\. 12"),
        ({"step_size": -0.1}, r"step_size=-0\.1 is not allowed"),
        ({"step_size": float("nan")}, r"step_size=nan is not allowed"),
        ({"step_size": "big"}, r"step_size='big' is not a number"),
        ({"batch_size": 0}, r"batch_size=0"),
        ({"seed": -1}, r"seed=-1"),
        ({"clients_per_round": 2.5}, r"clients_per_round=2\.5 is not an integer"),
    ],
)
def test_bad_configs_are_refused(change, complaint):
    with pytest.raises(ConfigError, match=complaint):
        fedpaq.FedPAQConfig(**{**SHAPE, **change})


def test_more_participants_than_clients_are_refused(logistic):
    config = fedpaq.FedPAQConfig(**{**SHAPE, "clients_per_round": 60})
    with pytest.raises(ConfigError, match=r"clients_per_round=60 exceeds num_clients=8; .*choose 1\.\.8"):
        fedpaq.train(logistic, config)


def test_a_schedule_that_goes_negative_is_refused(logistic):
    config = fedpaq.FedPAQConfig(**{**SHAPE, "step_size": lambda round: 0.1 - round})
    with pytest.raises(ConfigError, match=r"step_size\(round=1\)=-0\.9"):
        fedpaq.train(logistic, config)


def test_a_sweep_over_different_shapes_is_refused(logistic):
    configs = [fedpaq.FedPAQConfig(**SHAPE), fedpaq.FedPAQConfig(**{**SHAPE, "local_steps": 2})]
    with pytest.raises(ConfigError, match="local_steps takes 2 values in one sweep"):
        fedpaq.sweep(logistic, configs)
    with pytest.raises(ConfigError, match="is empty"):
        fedpaq.sweep(logistic, [])


def test_a_callback_gets_params_of_its_own(problem, config):
    seen = []

    def keep_and_spoil(record, params):
        seen.append(params.copy())
        params[:] = np.nan

    history = fedpaq.train(problem, config, callback=keep_and_spoil)
    np.testing.assert_array_equal(seen[0], problem.initial_params)
    np.testing.assert_array_equal(seen[-1], history.params)
    kept = []
    fedpaq.train(problem, config, callback=lambda record, params: kept.append(params))
    for mine, theirs in zip(kept, seen, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(
    ("argument", "value", "reason"),
    [
        ("quantizer", fedpaq.LowPrecision, "is a class"),
        ("quantizer", 4, "has no name and no quantize"),
        ("quantizer", "", "unknown quantizer"),
        ("aggregation", TrimmedMean, "is a class"),
        ("downlink", fedpaq.Changes, "is a class"),
        ("downlink", object(), "has no name and no open"),
        *[("cost_model", bad, "is not a CostModel; e.g. CostModel.from_ratio") for bad in (0, "", {}, [], np.ones(2))],
        *[("executor", bad, "^executor=.* has no name and no local_updates") for bad in (None, 0, [], np.ones(2))],
        ("executor", Dense, "executor=Dense is a class; pass an instance"),
        *[("callback", bad, "^callback=.* cannot be called; pass a function") for bad in (0, "", {}, np.ones(2))],
        *[("checkpoint", bad, "^checkpoint=.* is not a path; write e.g. 'run.ckpt'") for bad in (0, False, [], b"x")],
        *[("device", bad, "^device=.* is not known to torch; choose 'cpu' or 'cuda'") for bad in (None, {}, 1.5)],
        *[("ranks", bad, "^ranks=.* has no is_first and no all_gather") for bad in (None, 2, np.ones(2))],
    ],
)
def test_arguments_of_another_kind_are_refused_before_any_work(logistic, config, argument, value, reason):
    with pytest.raises(ConfigError, match=reason):
        fedpaq.train(logistic, config, **{argument: value})


@pytest.mark.parametrize("bad", [None, 0, "", "x", {}, [], np.ones(2), fedpaq.FedPAQConfig])
def test_what_is_not_a_config_is_refused_before_any_work(logistic, config, bad):
    for run in (lambda: fedpaq.train(logistic, bad), lambda: fedpaq.sweep(logistic, [config, bad])):
        with pytest.raises(ConfigError, match=r"^config=.* is not a FedPAQConfig; make one, e.g. with FedPAQ"):
            run()


def test_a_sweep_takes_any_run_of_configs_and_not_a_single_one(logistic, config):
    configs = [config, replace(config, seed=5)]
    expected = [history.to_json() for history in fedpaq.sweep(logistic, configs)]
    for given in (tuple(configs), iter(configs), np.array(configs, object)):
        assert [history.to_json() for history in fedpaq.sweep(logistic, given)] == expected
    with pytest.raises(ConfigError, match=r"^configs=FedPAQConfig.* is not a list of configs; write \[config\], or"):
        fedpaq.sweep(logistic, config)


def test_a_schedule_need_not_be_copyable(logistic, config):
    lock = threading.Lock()

    def schedule(round):
        with lock:
            return np.float32(0.1)

    history = fedpaq.train(logistic, replace(config, step_size=schedule))
    assert "schedule" in history.config["step_size"]


def test_numbers_of_numpy_end_in_plain_json(logistic, config):
    cost = fedpaq.CostModel(ratio=np.float32(100), slow_share=np.float64(0.2), slow_factor=np.int64(3))
    history = fedpaq.train(
        logistic, replace(config, step_size=np.float32(0.1), local_steps=np.int64(3)), cost_model=cost,
        quantizer=fedpaq.Rotated(bits=np.float32(0.5)), evaluate_every=np.int64(1),
    )  # fmt: skip
    assert json.loads(history.to_json())["cost_model"]["slow_factor"] == 3


def test_the_default_type_of_torch_does_not_matter(config):
    problem = make_problem("convnet")
    expected = fedpaq.train(problem, config, executor="captured").params
    torch.set_default_dtype(torch.float64)
    try:
        found = fedpaq.train(make_problem("convnet"), config, executor="captured").params
    finally:
        torch.set_default_dtype(torch.float32)
    assert found.shape == expected.shape and found.dtype == np.float32
