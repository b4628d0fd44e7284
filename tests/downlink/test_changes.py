"""Changes: runs with coded downloads, their bytes, and that nothing else of a run changes them."""

from __future__ import annotations

import numpy as np
import pytest

import fedpaq
from fedpaq.downlink import parse
from fedpaq.downlink.changes import ChangesBroadcast
from fedpaq.downlink.stream import NOTHING, receive
from fedpaq.errors import CheckpointError, ConfigError
from small_problems import make_problem

CODED = fedpaq.Changes("rotated:2")


class Watched(fedpaq.Changes):
    """Changes with real clients, who keep what they receive; each download is compared with the server's model."""

    def open(self, seeds, num_clients, params):
        return WatchedBroadcast([self.stream(seed, params) for seed in seeds], num_clients)


class WatchedBroadcast(ChangesBroadcast):
    def __init__(self, streams, num_clients):
        super().__init__(streams, num_clients)
        self.clients = {}

    def send(self, round, runs, participants):
        expected = [
            [self.serve(run, client, round) for client in clients.tolist()]
            for run, clients in zip(runs.tolist(), participants, strict=True)
        ]
        received = super().send(round, runs, participants)
        assert received.tolist() == expected
        return received

    def serve(self, run, client, round):
        stream = self.streams[run]
        held, params = self.clients.get((run, client), (NOTHING, None))
        download = stream.download(held)
        params = receive(download, params, stream.params.size, stream.seed, round)
        assert params.tobytes() == stream.params.tobytes()
        self.clients[run, client] = (round, params)
        return sum(map(len, download.payloads))


@pytest.mark.parametrize("kind", ["logistic", "mlp", "convnet"])
def test_every_participant_of_a_run_holds_the_servers_model(kind, config):
    problem = make_problem(kind)
    history = fedpaq.train(problem, config, quantizer=fedpaq.LowPrecision(4), downlink=Watched("rotated:2"))
    plain = fedpaq.train(problem, config, quantizer=fedpaq.LowPrecision(4), downlink=CODED)
    assert np.array_equal(history.params, plain.params)
    assert plain.downlink == "rotated:2/rotated:8" and plain.final.download_bytes > 0


def test_downloads_shrink_and_the_loss_hardly_changes(config):
    problem = make_problem("mlp")
    dense, coded = (fedpaq.train(problem, config, downlink=each).final for each in (None, CODED))
    assert coded.download_bytes < 0.4 * dense.download_bytes
    assert coded.loss == pytest.approx(dense.loss, rel=0.02)


def test_a_lossless_downlink_gives_what_dense_gives_but_for_rounding(logistic, config):
    dense = fedpaq.train(logistic, config)
    exact = fedpaq.train(logistic, config, downlink=fedpaq.Changes("none", "none"))
    assert np.abs(exact.params - dense.params).max() < 1e-6
    assert exact.final.download_bytes <= dense.final.download_bytes


def test_a_sweep_is_its_runs_one_by_one(logistic, config):
    configs = [config, fedpaq.FedPAQConfig(**{**config.to_dict(), "step_size": 0.3, "seed": 5})]
    swept = fedpaq.sweep(logistic, configs, downlink=CODED)
    for each, history in zip(configs, swept, strict=True):
        alone = fedpaq.train(logistic, each, downlink=CODED)
        assert np.array_equal(alone.params, history.params) and alone.records == history.records


@pytest.mark.parametrize("stopped", [0, 1, 3])
def test_a_resumed_run_is_bit_identical(logistic, config, tmp_path, stopped):
    whole = fedpaq.train(logistic, config, downlink=CODED)

    class Stop(Exception):
        pass

    def stop(record, params):
        if record.round == stopped + 1:
            raise Stop

    with pytest.raises(Stop):
        fedpaq.train(logistic, config, downlink=CODED, checkpoint=tmp_path / "run", callback=stop)
    again = fedpaq.train(logistic, config, downlink=CODED, checkpoint=tmp_path / "run")
    assert np.array_equal(again.params, whole.params) and again.records == whole.records


def test_a_checkpoint_of_another_downlink_is_refused(logistic, config, tmp_path):
    fedpaq.train(logistic, config, downlink=CODED, checkpoint=tmp_path / "run")
    with pytest.raises(CheckpointError, match="downlink"):
        fedpaq.train(logistic, config, downlink=fedpaq.Changes("rotated:1"), checkpoint=tmp_path / "run")


def test_a_run_that_blows_up_says_so(logistic, config):
    wild = fedpaq.FedPAQConfig(**{**config.to_dict(), "step_size": 1e30})
    with pytest.raises(fedpaq.DivergedError):
        fedpaq.train(logistic, wild, downlink=CODED)


def test_few_participants_of_many_never_cost_more_than_dense():
    problem = fedpaq.problems.load("mnist-logistic", num_clients=200, seed=0)
    config = fedpaq.FedPAQConfig(clients_per_round=5, local_steps=1, total_steps=30, batch_size=5, step_size=0.1)
    dense, changes, frames = (
        fedpaq.train(problem, config, downlink=parse(text), evaluate_every=0).final.download_bytes
        for text in ("dense", "rotated:4/none", "rotated:4")
    )
    assert frames < 0.4 * dense and frames < changes <= dense


@pytest.mark.parametrize("settings", [{"quantizer": "low-precision:1"}, {"snapshot": fedpaq.LowPrecision(4)}])
def test_a_quantizer_that_would_lose_more_and_more_is_refused(settings):
    with pytest.raises(ConfigError, match="cannot code downloads"):
        fedpaq.Changes(**settings)


def test_a_texts_name_is_its_text():
    for text in ("dense", "rotated:1/rotated:8", "rotated:0.5/none", "none/none"):
        assert parse(text).name == text
    with pytest.raises(ConfigError, match=r"unknown downlink 'dens'; known: dense, rotated, none .did you mean"):
        parse("dens")
    with pytest.raises(ConfigError, match="unknown quantizer 'nine'"):
        parse("rotated:1/nine")
