"""Downloads: changes on Flower's way, to training and evaluation, with clients absent, forgetful and mistaken."""

from __future__ import annotations

import logging

import numpy as np
import pytest

import fedpaq
from fedpaq.errors import CheckpointError
from fedpaq.flower import FedPAQ, protocol, quantize_mod
from fedpaq.flower.downloads import digest
from fedpaq.flower.kept_model import SUFFIX
from flower.flower_apps import drifting_app, problem_app, record
from flower.in_process_grid import InProcessGrid

pytestmark = pytest.mark.flower
SIZE = 600
CODED = "rotated:2"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Where the clients of a test keep their models."""
    monkeypatch.setenv("FEDPAQ_CACHE", str(tmp_path / "kept"))
    return tmp_path / "kept"


class Watch:
    """A mod between quantize_mod and the app: what each client was handed, by kind and round."""

    def __init__(self):
        self.seen = []

    def __call__(self, message, context, call_next):
        kind = message.metadata.message_type.split(".")[0]
        arrays = {name: array.numpy() for name, array in message.content["arrays"].items()}
        self.seen.append((kind, context.node_config["partition-id"], digest(arrays["w"])))
        return call_next(message, context)


def model():
    return record(w=np.random.default_rng(0).standard_normal(SIZE).astype(np.float32))


def run(rounds=6, nodes=5, per_round=3, **settings):
    watch = Watch()
    grid = InProcessGrid(drifting_app(quantize_mod(levels=4), watch), nodes)
    strategy = FedPAQ(clients_per_round=per_round, num_clients=per_round, downlink=CODED, patience=0, **settings)
    return strategy, grid, watch, lambda: strategy.start(grid, model(), num_rounds=rounds)


def test_a_deployment_with_coded_downloads_is_the_simulator_s(problem, config):
    grid = InProcessGrid(problem_app(problem, config, levels=3), problem.num_clients)
    strategy = FedPAQ(
        clients_per_round=config.clients_per_round,
        num_clients=problem.num_clients,
        seed=config.seed,
        downlink=fedpaq.Changes(CODED),
        fraction_evaluate=0.0,
    )
    result = strategy.start(grid, record(params=problem.initial_params), num_rounds=config.num_rounds)
    expected = fedpaq.train(
        problem, config, quantizer=fedpaq.LowPrecision(3), downlink=fedpaq.Changes(CODED), executor="sequential"
    )
    np.testing.assert_array_equal(result.arrays["params"].numpy(), expected.params, strict=True)
    assert sum(each.metrics["fedpaq-download-bytes"] for each in strategy.history) == expected.final.download_bytes


def test_everyone_holds_the_servers_model_in_training_and_evaluation_with_clients_absent():
    strategy, grid, watch, start = run(rounds=8)
    absent = [{0}, {1, 2}, set(), {0, 3, 4}, {2}, set(), {1}, {4}]
    models = []
    keep = strategy.configure_train

    def configure(server_round, arrays, config, on):
        grid.offline = absent[server_round - 1]
        models.append(digest(arrays["w"].numpy()))
        return keep(server_round, arrays, config, on)

    strategy.configure_train = configure
    models.append(digest(start().arrays["w"].numpy()))
    trained = [seen for kind, _, seen in watch.seen if kind == "train"]
    evaluated = [seen for kind, _, seen in watch.seen if kind == "evaluate"]
    assert set(trained) == set(models[:-1]) and set(evaluated) == set(models[1:])
    metrics = [each.metrics for each in strategy.history]
    assert metrics[-1]["fedpaq-download-bytes"] < 0.3 * 3 * 4 * SIZE


def damage_truncate(path):
    path.write_bytes(path.read_bytes()[:-7])


def damage_flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def damage_older(path):
    path.write_bytes(path.with_name("older").read_bytes())


def damage_other(path):
    from fedpaq.storage import checkpoint

    run = path.name.rsplit("-", 1)[0]
    path.write_bytes(checkpoint.pack({"run": run, "frame": 2}, {"params": np.ones(SIZE, np.float32)}))


def damage_size(path):
    from fedpaq.storage import checkpoint

    run = path.name.rsplit("-", 1)[0]
    path.write_bytes(checkpoint.pack({"run": run, "frame": 2}, {"params": np.ones(7, np.float32)}))


@pytest.mark.parametrize("damage", [damage_truncate, damage_flip, damage_older, damage_other, damage_size, None])
def test_a_damaged_or_lost_model_costs_one_download_and_is_never_wrong(damage, folder, caplog):
    undisturbed, *_, start = run()
    expected = start().arrays["w"].numpy()
    strategy, *_, start = run()
    keep = strategy.configure_train

    def configure(server_round, arrays, config, on):
        for path in sorted(folder.glob(f"{strategy._state.run}-*{SUFFIX}")):
            if server_round == 2:
                path.with_name("older").write_bytes(path.read_bytes())
            if server_round == 4:
                path.unlink() if damage is None else damage(path)
        return keep(server_round, arrays, config, on)

    strategy.configure_train = configure
    with caplog.at_level(logging.WARNING, "flwr"):
        np.testing.assert_array_equal(start().arrays["w"].numpy(), expected)
    assert [each.counted for each in strategy.history] == [each.counted for each in undisturbed.history]
    told = [line for line in caplog.messages if "gets the whole model" in line]
    assert 3 <= len(told) <= 5 and all(SUFFIX in line for line in told)
    assert strategy.history[3].metrics["fedpaq-download-bytes"] >= 3 * 4 * SIZE


def test_an_unwritable_folder_costs_whole_models_and_no_second_question(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("FEDPAQ_CACHE", str(tmp_path / "file"))
    strategy, *_, start = run(rounds=3)
    with caplog.at_level(logging.WARNING, "flwr"):
        start()
    assert any("cannot be kept" in line for line in caplog.messages)
    assert not any("gets the whole model" in line for line in caplog.messages)
    assert all(len(each.counted) == 3 for each in strategy.history)


def test_a_resumed_server_goes_on_with_changes(tmp_path):
    whole, *_, start = run(rounds=6)
    expected = start().arrays["w"].numpy()
    *_, start = run(rounds=3, checkpoint=tmp_path / "run")
    start()
    again, grid, _, start = run(rounds=6, checkpoint=tmp_path / "run")
    np.testing.assert_array_equal(start().arrays["w"].numpy(), expected)
    downloads = [each.metrics["fedpaq-download-bytes"] for each in again.history]
    assert downloads == [each.metrics["fedpaq-download-bytes"] for each in whole.history]
    with pytest.raises(CheckpointError, match="downlink"):
        FedPAQ(clients_per_round=3, checkpoint=tmp_path / "run").start(grid, model(), num_rounds=7)


def test_clients_that_share_a_disk_keep_a_model_each(folder):
    *_, start = run(nodes=5, per_round=5)
    start()
    assert len(list(folder.glob(f"*{SUFFIX}"))) == 5


def test_a_client_whose_reply_was_lost_is_served_from_what_it_held_before():
    strategy, grid, _, start = run(nodes=3, per_round=3, fraction_evaluate=0.0, deadline=0.05)
    lose = {"left": 2}

    def meddle(client, reply):
        said = reply.content.config_records.get(protocol.RECORD, {})
        if client == 1 and "holds" in said and lose["left"]:
            lose["left"] -= 1
            return None
        return reply

    grid.meddle = meddle
    start()
    assert [each.late for each in strategy.history] == [[1], [1], [], [], [], []]
    assert strategy.history[-1].counted == [0, 1, 2]


def test_a_subclass_that_changes_the_model_changes_what_clients_get():
    class Zeroing(FedPAQ):
        def aggregate_train(self, server_round, replies):
            arrays, metrics = super().aggregate_train(server_round, replies)
            return record(w=np.zeros_like(arrays["w"].numpy())), metrics

    grid = InProcessGrid(drifting_app(quantize_mod(levels=4)), 3)
    strategy = Zeroing(clients_per_round=3, num_clients=3, downlink=CODED)
    result = strategy.start(grid, model(), num_rounds=3)
    assert not result.arrays["w"].numpy().any()
    assert [metrics["mean"] for metrics in result.evaluate_metrics_clientapp.values()] == [0, 0, 0]


def test_old_models_are_forgotten(folder):
    import os

    folder.mkdir()
    old, new, other = (folder / name for name in (f"a-1{SUFFIX}", f"b-1{SUFFIX}", "notes.txt"))
    for path in (old, new, other):
        path.write_bytes(b"x")
    for path in (old, other):
        os.utime(path, (0, 0))
    *_, start = run(rounds=1)
    start()
    assert not old.exists() and new.exists() and other.exists()
