"""Loopback: the commands and the configuration of a trial deployment."""

from __future__ import annotations

import socket
import sys
import tomllib

import pytest

from fedpaq.flower.trial.loopback import Loopback, free_port

pytestmark = pytest.mark.flower


def test_a_free_port_can_be_listened_on():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", free_port()))


def test_settings_reach_flower_in_its_own_spelling(tmp_path):
    deployment = Loopback(tmp_path, num_supernodes=1)
    command = deployment._run_command(tmp_path, {"num_rounds": 3, "name": 'a "b"', "rate": 0.5, "fast": True})
    assert command[:4] == ["run", str(tmp_path.resolve()), "loopback", "--stream"]
    assert command[4:] == ["--run-config", 'num-rounds=3 name="a \\"b\\"" rate=0.5 fast=true']
    assert "--run-config" not in deployment._run_command(tmp_path, {})


@pytest.mark.parametrize("tls", [False, True])
def test_the_configuration_names_the_port_and_what_to_trust(tmp_path, tls):
    deployment = Loopback(tmp_path, num_supernodes=1, tls=tls)
    deployment._prepare()
    found = tomllib.loads((tmp_path / "flwr-home" / "config.toml").read_text())["superlink"]
    assert found["default"] == "loopback"
    assert found["loopback"]["address"] == f"127.0.0.1:{deployment.port}"
    assert (tmp_path / "ca.crt").exists() == tls
    trusted = {"root-certificates": str(tmp_path.resolve() / "ca.crt")} if tls else {"insecure": True}
    assert trusted.items() <= found["loopback"].items()


def test_a_deployment_asks_nothing_of_the_outside_world(tmp_path):
    deployment = Loopback(tmp_path, num_supernodes=1, environment={"EXTRA": "1"})
    given_to = deployment._environment
    assert given_to["FLWR_TELEMETRY_ENABLED"] == "0" and given_to["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert given_to["FLWR_HOME"] == str(tmp_path.resolve() / "flwr-home") and given_to["EXTRA"] == "1"


def test_a_restarted_process_continues_its_log_and_a_new_deployment_begins_one(tmp_path):
    for word in ("first", "second"):
        deployment = Loopback(tmp_path, num_supernodes=1)
        for _ in range(2):
            deployment._start("node", [sys.executable, "-S", "-c", f"print('{word}')"]).wait()
        assert deployment.log("node").split() == [word, word]
