"""OnDevice: what a GPU adds up is the mean of the round; here with a device batch that is a plain sum."""

from __future__ import annotations

import numpy as np
import torch

import fedpaq
from fedpaq import algorithm
from fedpaq.server.device_batch import DEVICE_BATCHES, ValuesOnDevice
from fedpaq.server.on_device import OnDevice
from small_rounds import updates_of, work_of


class OnHost(ValuesOnDevice):
    """Adds with torch on the CPU, job after job."""

    def add_to(self, total, first_job):
        for run in range(len(total)):
            for job in range(int(first_job[run]), int(first_job[run + 1])):
                total[run] += self._updates[job].double()


def test_params_stay_where_the_mean_is_made_and_are_the_bits_of_the_host(monkeypatch, tmp_path, logistic, config):
    monkeypatch.setitem(DEVICE_BATCHES, fedpaq.Identity, OnHost)
    expected = fedpaq.train(logistic, config, executor="sequential")
    uplink, seen = OnDevice(fedpaq.Identity(), torch.device("cpu")), []
    monkeypatch.setattr(algorithm, "choose_uplink", lambda *_: uplink)
    for evaluate_every in (1, 0):
        found = fedpaq.train(
            logistic, config, executor="sequential", evaluate_every=evaluate_every,
            callback=lambda record, params: seen.append(params), checkpoint=tmp_path / f"{evaluate_every}.fpq",
        )  # fmt: skip
        assert np.array_equal(found.params, expected.params) and found.final.loss == expected.final.loss
    assert all(isinstance(params, np.ndarray) for params in seen) and np.array_equal(seen[-1], expected.params)
    resumed = fedpaq.train(logistic, config, executor="sequential", checkpoint=tmp_path / "1.fpq")
    assert np.array_equal(resumed.params, expected.params)
    with_coded_downloads = {"executor": "sequential", "downlink": fedpaq.Changes("rotated:4")}
    found = fedpaq.train(logistic, config, **with_coded_downloads)  # a downlink that takes arrays gets arrays
    monkeypatch.undo()
    assert np.array_equal(found.params, fedpaq.train(logistic, config, **with_coded_downloads).params)


def test_sums_of_parts_become_the_mean_and_lengths_add_up(monkeypatch):
    monkeypatch.setitem(DEVICE_BATCHES, fedpaq.Identity, OnHost)
    work = work_of(runs=2, per_run=3)
    updates = updates_of(work, 5)
    uplink = OnDevice(fedpaq.Identity(), torch.device("cpu"))
    inbox = uplink.open(2, 5)
    for jobs in (slice(0, 2), slice(2, 6)):
        inbox.add(torch.from_numpy(updates[jobs]), work.part(jobs))
    mean, sizes = inbox.finish()
    np.testing.assert_array_equal(mean, updates.astype(np.float64).reshape(2, 3, 5).sum(axis=1) / 3)
    assert sizes.tolist() == [3 * fedpaq.codec.raw_bytes(5)] * 2
    assert uplink.payload_size_source == "encoded" and uplink.share(7) == slice(0, 7)
