"""Real deployments: a SuperLink and SuperNodes as processes on loopback, from start to stop, and their faults.

In one file, so that they stand one after another: each takes the cores for seconds at a time.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time

import numpy as np
import pytest

import fedpaq
from fedpaq import codec
from fedpaq.clients import train_one_client
from fedpaq.flower.trial.loopback import Loopback
from fedpaq.flower.trial.watchdog import processes_of
from fedpaq.randomness import Key, sample_without_replacement
from flower.deployments import HERE, LEVELS, environment, read_result, warm_kernels

pytestmark = [pytest.mark.flower, pytest.mark.slow]


@pytest.fixture(scope="module", autouse=True)
def compiled():
    warm_kernels()


def test_a_tls_deployment_equals_the_simulator_and_learns(tmp_path):
    settings = {"num_rounds": 2, "clients_per_round": 2, "num_clients": 3, "seed": 5, "downlink": "rotated:4"}
    (tmp_path / "payloads").mkdir()
    keep = {"FEDPAQ_CACHE": str(tmp_path / "kept")}
    with Loopback(tmp_path, num_supernodes=3, tls=True, environment={**environment(), **keep}) as deployment:
        log = deployment.run(
            HERE / "apps" / "witness",
            result=str(tmp_path / "result.npz"),
            payloads=str(tmp_path / "payloads"),
            timeout=400,
            **settings,
        )
        assert processes_of(tmp_path / "flwr-home")
    assert not processes_of(tmp_path / "flwr-home")
    assert (tmp_path / "result.npz").exists(), log

    problem = fedpaq.problems.load("mnist-logistic", num_clients=3, seed=5)
    config = fedpaq.FedPAQConfig(
        clients_per_round=2, local_steps=5, total_steps=10, batch_size=10, step_size=0.2, seed=5
    )
    rounds = []
    simulated = fedpaq.train(
        problem,
        config,
        quantizer=LEVELS,
        downlink=fedpaq.Changes("rotated:4"),
        executor="sequential",
        callback=lambda record, params: rounds.append(params.copy()),
    )
    params, history = read_result(tmp_path / "result.npz")
    np.testing.assert_array_equal(params, simulated.params, strict=True)
    assert problem.evaluate(params).accuracy > 0.9
    assert 2 <= len(list((tmp_path / "kept").iterdir())) <= 3  # a model for each client that took part

    for round, record in enumerate(history):
        assert record["asked"] == record["counted"]
        for client in record["counted"]:
            local = train_one_client(problem, config, round=round, client=client, params=rounds[round])
            key = Key(seed=5, round=round, client=client)
            expected = codec.encode(LEVELS.quantize(local - rounds[round], key=key))
            assert (tmp_path / "payloads" / f"{round}-{client}").read_bytes() == expected
    assert len(list((tmp_path / "payloads").iterdir())) == 4


def test_nothing_is_left_behind_when_a_test_fails(tmp_path):
    def failing_test():
        with Loopback(tmp_path, num_supernodes=1, environment=environment()):
            assert processes_of(tmp_path / "flwr-home")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing_test()
    assert not processes_of(tmp_path / "flwr-home")


def test_nothing_is_left_behind_when_the_test_runner_is_killed(tmp_path):
    code = (
        "import sys, time; from fedpaq.flower.trial.loopback import Loopback\n"
        "with Loopback(sys.argv[1], num_supernodes=1):\n    print('up', flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, **environment()}) as runner:
        assert runner.stdout.readline() == b"up\n"
        runner.kill()
    until = time.monotonic() + 120
    while processes_of(tmp_path / "flwr-home") and time.monotonic() < until:
        time.sleep(0.2)
    assert not processes_of(tmp_path / "flwr-home")


def wait_for(path, seconds=300.0):
    until = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < until, f"{path.name} did not appear"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faulty")
    with Loopback(folder, num_supernodes=3, environment=environment()) as running:
        yield running
    assert not processes_of(folder / "flwr-home")


def load_task():
    spec = importlib.util.spec_from_file_location("faulty_task", HERE / "apps/faulty/faulty/task.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def trained_on(history, seed=1):
    """Train on exactly the replies that counted."""
    task = load_task()
    params = np.zeros(task.DIMENSION, np.float32)
    for round, record in enumerate(history):
        total = np.zeros(task.DIMENSION)
        for client in record["counted"]:
            update = task.local_params(params, round, client) - params
            LEVELS.quantize(update, key=Key(seed=seed, round=round, client=client)).add_to(total)
        params = (params + total / len(record["counted"])).astype(np.float32)
    return params


def run_faulty(deployment, name, faults, **settings):
    """Run the faulty app and return its log, final params and history."""
    folder = deployment.folder
    text = ";".join(f"{round}/{client}/{kind}" for (round, client), kind in faults.items())
    log = deployment.run(HERE / "apps" / "faulty", name=name, faults=text, folder=str(folder), timeout=400, **settings)
    assert (folder / f"{name}.npz").exists(), log
    return log, *read_result(folder / f"{name}.npz")


def test_every_kind_of_bad_client_is_dropped_and_the_rest_trains(deployment):
    faults = {
        (0, 1): "truncated",
        (0, 2): "raises",
        (1, 0): "random",
        (1, 2): "nan-norm",
        (2, 1): "wrong-dimension",
        (2, 0): "oversized",
    }
    log, params, history = run_faulty(deployment, "faults", faults, num_rounds=3, deadline=120.0)
    for (round, client), _ in faults.items():
        assert str(client) in history[round]["rejected"]
        assert f"round={round + 1}: client={client} rejected" in log
    assert "disk on fire" in history[0]["rejected"]["2"]
    assert [record["counted"] for record in history] == [[0], [1], [2]]
    np.testing.assert_array_equal(params, trained_on(history), strict=True)


def test_a_supernode_killed_in_the_middle_of_a_round_costs_only_its_own_reply(deployment):
    folder = deployment.folder
    settings = {"folder": str(folder), "name": "killed", "faults": "0/2/hangs", "num_rounds": 1}
    run = deployment.start_run(HERE / "apps" / "faulty", deadline=25.0, **settings)
    wait_for(folder / "at-work-0-2")
    deployment.kill("supernode-2")
    run.wait(280)
    params, history = read_result(folder / "killed.npz")
    assert history[0]["counted"] == [0, 1]
    assert history[0]["late"] == [2] or "2" in history[0]["rejected"]
    np.testing.assert_array_equal(params, trained_on(history), strict=True)
    deployment.start_supernode(2)


def test_a_run_goes_on_after_the_superlink_was_killed(deployment):
    folder = deployment.folder
    settings = {"checkpoint": str(folder / "state"), "num_rounds": 2, "clients_per_round": 2}
    settings |= {"deadline": 120.0, "patience": 120.0, "seed": 2}
    slow = ";".join(f"1/{client}/slow" for client in range(3))
    interrupted = {"name": "interrupted", "folder": str(folder), "faults": slow, **settings}
    run = deployment.start_run(HERE / "apps" / "faulty", **interrupted)
    until = time.monotonic() + 300
    while not list(folder.glob("at-work-1-*")):
        assert time.monotonic() < until, "round 2 did not begin"
        time.sleep(0.1)
    deployment.kill("superlink")
    run.wait(60)
    assert (folder / "state").exists()
    assert not (folder / "interrupted.npz").exists()

    deployment.start_superlink()  # SuperNodes come back by themselves
    log, params, history = run_faulty(deployment, "resumed", {}, **settings)
    assert "continuing after round 1" in log
    assert [record["server_round"] for record in history] == [1, 2]
    for round, record in enumerate(history):  # nobody lost, and the draws of an uninterrupted run
        drawn = sample_without_replacement(Key(seed=2, round=round), 3, 2).tolist()
        assert record["counted"] == record["asked"] == drawn
    np.testing.assert_array_equal(params, trained_on(history, seed=2), strict=True)
