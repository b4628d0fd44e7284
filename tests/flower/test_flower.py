"""Around a Flower run: exchange, roster, protocol, certificates, a trial deployment's helpers, the example."""

from __future__ import annotations

import datetime
import importlib
import ipaddress
import json
import logging
import os
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

import fedpaq
from fedpaq import ConfigError
from fedpaq.flower import FedPAQ, exchange, protocol, quantize_mod, roster
from fedpaq.flower.trial import __main__, certificates, loopback, watchdog
from fedpaq.flower.trial.loopback import Loopback, descendants, free_port
from flower.deployments import EXAMPLE
from flower.flower_apps import drifting_app, record
from flower.in_process_grid import InProcessGrid

pytestmark = pytest.mark.flower


@pytest.fixture(autouse=True)
def brisk(monkeypatch):
    monkeypatch.setattr(exchange, "POLL_SECONDS", 0.002)
    monkeypatch.setattr(roster, "POLL_SECONDS", 0.002)


def quantizing(nodes=3, **more):
    return InProcessGrid(drifting_app(quantize_mod(levels=1)), nodes, **more)


def who_are_you(node):
    return Message(RecordDict({protocol.RECORD: protocol.question(protocol.WHO)}), node, "train")


def test_asking_nobody_sends_nothing_and_returns_at_once():
    grid = quantizing()
    assert exchange.ask(grid, [], 60.0) == [] and grid.sent == []


def test_asking_returns_a_reply_for_each_that_answered_by_the_deadline():
    grid = quantizing(4)
    grid.meddle = lambda client, reply: None if client == 2 else reply
    messages = [who_are_you(1000 + at) for at in range(4)]
    replies = exchange.ask(grid, messages, 0.02)
    assert [reply.content[protocol.RECORD]["client"] for reply in replies] == [0, 1, 3]
    asked = [messages[at].metadata.message_id for at in (0, 1, 3)]
    assert [reply.metadata.reply_to_message_id for reply in replies] == asked


def test_a_reply_that_comes_later_is_still_gathered():
    grid, delays = quantizing(1), iter([True, True, False])
    pull = grid.pull_messages
    grid.pull_messages = lambda ids: [] if next(delays) else pull(ids)
    assert len(exchange.ask(grid, [who_are_you(1000)], 60.0)) == 1


@pytest.mark.parametrize(
    "error", [httpx.ConnectError("gone"), ConnectionResetError("gone"), TimeoutError("gone")]
)
def test_a_lost_connection_is_not_taken_for_a_bad_reply(error):
    grid = quantizing(1)

    def broken(_):
        raise error

    grid.pull_messages = broken
    with pytest.raises(type(error)):
        exchange.ask(grid, [who_are_you(1000)], 1.0)


def test_a_reply_that_cannot_be_unpacked_becomes_an_error_reply_with_the_reason():
    grid = quantizing(1)

    def broken(_):
        raise KeyError("children")

    grid.pull_messages = broken
    (reply,) = exchange.ask(grid, [who_are_you(1000)], 1.0)
    assert reply.has_error() and reply.error.code == exchange.UNREADABLE
    assert reply.error.reason == "the reply cannot be unpacked (KeyError: 'children')"


def test_each_node_is_asked_once_who_it_is():
    grid, book = quantizing(3), roster.Roster()
    for _ in range(3):
        assert book.present(grid) == {0: 1000, 1: 1001, 2: 1002}
    assert len(grid.sent) == 3


def test_clients_come_in_the_order_of_their_numbers_not_of_nodes():
    grid = quantizing(3, partition_ids=[9, 4, 7])
    assert list(roster.Roster().present(grid).items()) == [(4, 1001), (7, 1002), (9, 1000)]


def test_a_node_that_went_offline_before_it_answered_is_asked_again():
    grid, book = quantizing(1), roster.Roster()
    grid.meddle = lambda _, reply: Message(Error(roster.NODE_UNAVAILABLE, "offline"), reply_to=grid.sent[-1])
    assert book.present(grid) == {}
    grid.meddle = lambda _, reply: reply
    assert book.present(grid) == {0: 1000} and len(grid.sent) == 2


def answering(client):
    """A grid of one node whose answer to "who are you?" is ``client``."""
    grid = quantizing(1)

    def meddle(_, reply):
        reply.content[protocol.RECORD] = ConfigRecord({"version": protocol.VERSION, "client": client})
        return reply

    grid.meddle = meddle
    return grid


@pytest.mark.parametrize("client", ["seven", -2, 2**32, 1.5, b"7"])
def test_an_answer_that_is_no_client_number_refuses_the_node_by_name(client):
    with pytest.raises(ConfigError) as refused:
        roster.Roster().gather(answering(client), 1, 1, 0.0)
    assert str(refused.value).startswith("no node can take part; node=1000: client=")
    assert "choose 0..2^32-1" in str(refused.value)


def test_the_largest_client_number_is_allowed():
    assert roster.Roster().present(answering(2**32 - 1)) == {2**32 - 1: 1000}


def test_after_patience_the_least_is_enough_and_the_missing_are_not_awaited_again(caplog):
    grid, book = quantizing(3), roster.Roster()
    grid.offline = {2}
    with caplog.at_level(logging.WARNING, logger="flwr"):
        assert list(book.gather(grid, 3, 1, 0.01)) == [0, 1]
    assert "only 2 of 3 clients are present" in caplog.text
    caplog.clear()
    assert list(book.gather(grid, 3, 1, 2.0)) == [0, 1]
    assert caplog.text == ""  # at once: nobody was awaited
    grid.offline = set()
    assert list(book.gather(grid, 3, 1, 2.0)) == [0, 1, 2]  # but welcome


def test_with_enough_clients_patience_is_not_needed():
    assert list(roster.Roster().gather(quantizing(4), 2, 1, 2.0)) == [0, 1, 2, 3]


def test_a_question_and_an_answer_carry_the_version():
    content = RecordDict({protocol.RECORD: protocol.question(protocol.TRAIN, seed="1", round=2)})
    read = protocol.read_record(content, "missing")
    assert dict(read) == {"version": 1, "asked": "train", "seed": "1", "round": 2}
    assert dict(protocol.answer(exact=b"x")) == {"version": 1, "exact": b"x"}


def test_a_missing_record_is_told_in_the_caller_s_words():
    with pytest.raises(ConfigError, match=r"^what is missing$"):
        protocol.read_record(RecordDict(), "what is missing")


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_every_other_version_is_refused_and_named(version):
    values = {} if version is None else {"version": version}
    with pytest.raises(ConfigError) as refused:
        protocol.read_record(RecordDict({protocol.RECORD: ConfigRecord(values)}), "missing")
    assert f"speaks version={version!r}" in str(refused.value)
    assert "install the same fedpaq on server and clients" in str(refused.value)


@given(st.binary(max_size=200))
@settings(max_examples=30, deadline=None)
def test_bytes_travel_as_they_are_and_are_no_numpy_array(data):
    array = protocol.bytes_array(protocol.PAYLOAD, data)
    assert array.data == data and array.shape == (len(data),)
    with pytest.raises(TypeError):
        array.numpy()


def test_a_value_of_the_server_s_record_that_is_no_integer_is_refused():
    grid = quantizing(1)
    strategy = FedPAQ(clients_per_round=1)
    (message,) = strategy.configure_train(1, record(w=np.zeros(2, np.float32)), ConfigRecord(), grid)
    message.content[protocol.RECORD]["round"] = "one"
    context = Context(1, 1, {"partition-id": 0}, RecordDict(), {})
    with pytest.raises(ConfigError, match="value='one' in the server's 'fedpaq' record is not an integer"):
        drifting_app(quantize_mod(levels=1))(message, context)


def test_a_train_message_without_a_packed_model_is_refused():
    asked = protocol.question(protocol.TRAIN, seed="0", round=0, client=0, layout="[]")
    content = RecordDict({"arrays": record(w=np.zeros(2, np.float32)), protocol.RECORD: asked})
    context = Context(1, 1, {"partition-id": 0}, RecordDict(), {})
    with pytest.raises(ConfigError, match="holds no packed model"):
        drifting_app(quantize_mod(levels=1))(Message(content, 1, "train"), context)


def test_names_of_the_package_load_on_demand_and_unknown_ones_are_told():
    package = importlib.import_module("fedpaq.flower")
    assert {"FedPAQ", "quantize_mod"} <= set(dir(package))
    assert package.FedPAQ is FedPAQ
    with pytest.raises(AttributeError, match=r"module 'fedpaq.flower' has no attribute 'FedAvg'"):
        _ = package.FedAvg


def test_closing_a_round_that_was_not_opened_says_what_to_call_first():
    strategy = FedPAQ(clients_per_round=1)
    with pytest.raises(ConfigError, match="call start, or configure_train first"):
        strategy.aggregate_train(1, [])
    list(strategy.configure_train(1, record(w=np.zeros(2, np.float32)), ConfigRecord(), quantizing(1)))
    with pytest.raises(ConfigError, match="server_round=2 was not opened"):
        strategy.aggregate_train(2, [])


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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("patience", -1.0),
        ("fraction_evaluate", float("nan")),
        ("gradients_per_client", 0),
        ("deadline", "soon"),
    ],
)
def test_further_settings_are_checked_by_name(name, value):
    with pytest.raises(ConfigError, match=f"^{name}="):
        FedPAQ(clients_per_round=2, **{name: value})


@pytest.fixture(scope="module")
def trust(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trust")
    certificates.write_certificates(folder)
    return folder


def load_certificate(path):
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_the_server_s_certificate_is_signed_by_the_authority_for_this_machine_only(trust):
    authority, server = load_certificate(trust / "ca.crt"), load_certificate(trust / "server.crt")
    server.verify_directly_issued_by(authority)
    authority.verify_directly_issued_by(authority)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    assert names.get_values_for_type(x509.IPAddress) == [ipaddress.ip_address("127.0.0.1")]
    basic = x509.BasicConstraints
    assert authority.extensions.get_extension_for_class(basic).value.ca
    assert not server.extensions.get_extension_for_class(basic).value.ca
    for found in (authority, server):
        assert found.not_valid_after_utc - found.not_valid_before_utc < datetime.timedelta(days=8)


def test_the_key_on_disk_is_the_server_s_and_nobody_else_may_read_it(trust):
    key = serialization.load_pem_private_key((trust / "server.key").read_bytes(), None)
    assert key.public_key() == load_certificate(trust / "server.crt").public_key()
    assert {path.stat().st_mode & 0o777 for path in trust.iterdir()} == {0o600}


def test_a_node_s_key_pair_fits_together_and_is_new_each_time(tmp_path):
    publics = set()
    for name in ("node-0", "node-1"):
        private, public = certificates.write_node_key(tmp_path, name)
        key = serialization.load_ssh_private_key(private.read_bytes(), None)
        assert isinstance(key.curve, ec.SECP384R1)
        assert serialization.load_ssh_public_key(public.read_bytes()) == key.public_key()
        assert private.stat().st_mode & 0o077 == 0
        publics.add(public.read_bytes())
    assert len(publics) == 2


def test_a_free_port_can_be_listened_on():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", free_port()))


@pytest.fixture
def family():
    """A process with a child, both asleep: (parent id, child id)."""
    code = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid, flush=True)\nchild.wait()"
    )
    home = {"FLWR_HOME": f"/nowhere/{os.getpid()}"}
    with subprocess.Popen(
        [sys.executable, "-S", "-c", code], stdout=subprocess.PIPE, env={**os.environ, **home}
    ) as parent:
        child = int(parent.stdout.readline())
        yield parent.pid, child, home["FLWR_HOME"]
        for pid in (child, parent.pid):
            loopback._signal([pid], loopback.signal.SIGKILL)


def test_the_processes_of_a_deployment_are_found_and_ended_by_its_home(family):
    parent, child, home = family
    assert descendants(parent) == [child] and descendants(child) == []
    assert sorted(watchdog.processes_of(home)) == sorted([parent, child])
    assert watchdog.processes_of(home + "/other") == watchdog.processes_of(home[:-1]) == []
    watchdog.end_processes_of(home)
    assert watchdog.processes_of(home) == []


def test_signalling_a_process_that_is_gone_is_no_error():
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as short:
        pass
    loopback._signal([short.pid], loopback.signal.SIGTERM)
    assert not loopback._alive(short.pid) and loopback._alive(os.getpid())


def test_settings_reach_flower_in_its_own_spelling(tmp_path):
    deployment = Loopback(tmp_path, num_supernodes=1)
    command = deployment._run_command(tmp_path, {"num_rounds": 3, "name": 'a "b"', "rate": 0.5, "fast": True})
    assert command[:4] == ["run", str(tmp_path.resolve()), "loopback", "--stream"]
    assert command[4:] == ["--run-config", 'num-rounds=3 name="a \\"b\\"" rate=0.5 fast=true']
    assert "--run-config" not in deployment._run_command(tmp_path, {})


@pytest.mark.parametrize("tls", [False, True])
def test_the_configuration_names_the_port_and_what_to_trust(tmp_path, tls):
    import tomllib

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


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("rounds=3", 3),
        ("rate=0.5", 0.5),
        ("name=x", "x"),
        ("name=a=b", "a=b"),
        ("name=", ""),
        ("tiny=1e-3", 1e-3),
    ],
)
def test_a_setting_on_the_command_line_becomes_a_number_where_it_can(text, value):
    key, found = __main__._setting(text)
    assert key == text.split("=")[0] and found == value and type(found) is type(value)


def test_the_trial_s_command_line_has_sensible_defaults(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["x", "app", "--tls", "--run-config", "a=1", "b=2"])
    found = __main__._parse()
    assert (found.app, found.supernodes, found.tls, found.run_config) == ("app", 4, True, ["a=1", "b=2"])


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLE))
    names = ("task", "client_app", "server_app")
    yield {name: importlib.import_module(f"flower_mnist.{name}") for name in names}
    for name in [name for name in sys.modules if name.split(".")[0] == "flower_mnist"]:
        del sys.modules[name]


def test_the_example_learns_and_leaves_what_the_simulator_would(example, tmp_path, capsys):
    run_config = {"num-clients": 3, "clients-per-round": 2, "num-rounds": 2, "seed": 5, "local-steps": 2}
    run_config |= {"batch-size": 10, "step-size": 0.2, "deadline": 60.0, "checkpoint": "", "result": ""}
    result = tmp_path / "result.npz"
    run_config["result"] = str(result)
    grid = InProcessGrid(example["client_app"].app, 3, run_config=run_config)
    example["server_app"].app(grid, Context(1, 1, {}, RecordDict(), run_config))
    problem, config = example["task"].load_problem(3, 5), example["task"].training(run_config)
    expected = fedpaq.train(problem, config, quantizer=fedpaq.LowPrecision(1), executor="sequential")
    with np.load(result) as found:
        np.testing.assert_array_equal(found["params"], expected.params)
        assert [entry["counted"] for entry in json.loads(str(found["history"]))] != []
    assert f"loss={expected.final.loss:.4f} accuracy={expected.final.accuracy:.4f}" in capsys.readouterr().out
    sent = next(message for message in grid.sent if "arrays" in message.content)
    assert isinstance(sent.content["arrays"], ArrayRecord) and Path(EXAMPLE, "pyproject.toml").exists()
