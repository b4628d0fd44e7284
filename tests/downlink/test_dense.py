"""Dense: the whole model goes down as float32, and the server adds the plain mean."""

from __future__ import annotations

import numpy as np

import fedpaq
from fedpaq import codec
from fedpaq.downlink import Dense
from fedpaq.downlink.dense import DenseBroadcast
from fedpaq.quantizers import RawMessage


def test_every_participant_receives_a_raw_payload():
    broadcast = Dense().open([0, 1, 2], num_clients=9, params=np.zeros(70, np.float32))
    model = len(codec.encode(RawMessage(np.ones(70, np.float32))))
    assert broadcast.send(4, np.array([0, 2]), np.zeros((2, 5), np.int64)).tolist() == [[model] * 5] * 2


def test_the_mean_is_added_in_double_precision_and_rounded_once():
    params, mean = np.float32([[1.0, -2.0]]), np.array([[2.0**-25, 0.5]])
    moved = Dense().open([0], 1, np.zeros(2, np.float32)).adopt(np.arange(1), params, mean)
    assert moved.dtype == np.float32 and moved.tolist() == [[1.0, -1.5]]


def test_a_step_beyond_float32_is_infinite_without_a_warning():
    moved = Dense().open([0], 1, np.zeros(1, np.float32)).adopt(np.arange(1), np.float32([[3e38]]), np.array([[3e38]]))
    assert np.isinf(moved).all()


def test_downloads_are_recorded_and_any_downlink_can_take_its_place(logistic, config):
    dense = fedpaq.train(logistic, config)
    each = codec.raw_bytes(logistic.dimension) * config.clients_per_round
    assert [record.download_bytes for record in dense.records] == [each * k for k in range(config.num_rounds + 1)]

    class Nothing(Dense):
        """Sends nothing and moves nothing."""

        name = "nothing"

        def open(self, seeds, num_clients, params):
            return Still(np.tile(params, (len(seeds), 1)), 0)

    class Still(DenseBroadcast):
        def adopt(self, runs, params, mean):
            return params

    still = fedpaq.train(logistic, config, downlink=Nothing())
    assert still.downlink == "nothing" and still.final.download_bytes == 0
    assert np.array_equal(still.params, logistic.initial_params)
