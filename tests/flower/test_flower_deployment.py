"""Real deployments: a SuperLink and SuperNodes as processes on loopback, from start to stop."""

from __future__ import annotations

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
from fedpaq.randomness import Key
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
