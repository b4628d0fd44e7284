"""A round through every uplink: the same mean and bytes however it is cut, shared, spoiled or compiled."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpaq import codec
from fedpaq.hardware.ranks import ALONE
from fedpaq.kernels import numba as compiled
from fedpaq.server.aggregation import Mean
from fedpaq.server.encoded import Encoded
from fedpaq.server.gathered import Gathered
from small_rounds import QUANTIZERS, SERVERS, send_in_parts, updates_of, work_of


def by_hand(quantizer, updates, work, runs):
    """The paper's lines 10 and 11, message by message: the mean of what each client's payload stands for."""
    total, sizes = np.zeros((runs, updates.shape[1])), np.zeros(runs, np.int64)
    for update, key, run in zip(updates, work.keys(), work.run_of.tolist(), strict=True):
        payload = codec.encode(quantizer.quantize(update, key=key))
        codec.decode(payload).add_to(total[run])
        sizes[run] += len(payload)
    return total / (len(work) // runs), sizes


@pytest.mark.parametrize("quantizer", QUANTIZERS, ids=lambda quantizer: quantizer.name)
def test_the_mean_and_the_bytes_are_those_worked_message_by_message(quantizer):
    work = work_of(runs=3, per_run=4)
    updates = updates_of(work, 50)
    mean, sizes = send_in_parts(Encoded(quantizer, Mean()), updates, work, 3)
    expected, expected_sizes = by_hand(quantizer, updates, work, 3)
    assert np.array_equal(mean, expected) and np.array_equal(sizes, expected_sizes)
    assert mean.dtype == np.float64 and sizes.dtype == np.int64


@given(st.lists(st.integers(0, 12), max_size=4), st.sampled_from(QUANTIZERS), st.sampled_from(SERVERS))
@settings(max_examples=30, deadline=None)
def test_a_round_may_be_sent_in_any_parts(cuts, quantizer, server):
    work = work_of(runs=2, per_run=6)
    updates = updates_of(work, 20)
    for uplink in (Encoded(quantizer, server), Gathered(quantizer, server, ALONE)):
        whole, parts = (send_in_parts(uplink, updates, work, 2, cut) for cut in ((), cuts))
        assert np.array_equal(whole[0], parts[0]) and np.array_equal(whole[1], parts[1])


@pytest.mark.parametrize("make", [Encoded, lambda *given: Gathered(*given, ALONE)], ids=["encoded", "gathered"])
@pytest.mark.parametrize("quantizer", QUANTIZERS, ids=lambda quantizer: quantizer.name)
def test_a_large_but_finite_run_does_not_suffer_from_another_s_nan(quantizer, make):
    """The norm of the whole is beyond float32, that of each bucket or coordinate is not."""
    work = work_of(runs=2, per_run=2)
    updates = updates_of(work, 40)
    updates[2:] = 1e38  # norm 6e38 in all, 2.6e38 in a bucket of seven
    other_run = replace(work.part(slice(2, 4)), run_of=np.zeros(2, np.int64))
    alone, _ = send_in_parts(make(quantizer, Mean()), updates[2:], other_run, 1)
    updates[0, 5] = np.nan
    mean, _ = send_in_parts(make(quantizer, Mean()), updates, work, 2)
    assert np.isnan(mean[0]).all()
    assert np.array_equal(mean[1], alone[0], equal_nan=True)
    assert np.isnan(mean[1]).all() == (quantizer == QUANTIZERS[0])  # one norm: no message can carry it


@pytest.mark.parametrize("server", SERVERS, ids=lambda server: server.name)
def test_without_numba_a_round_is_the_same_to_the_bit(server, monkeypatch):
    work = work_of(runs=2, per_run=3)
    updates = updates_of(work, 25)
    rounds = [send_in_parts(Encoded(quantizer, server), updates, work, 2) for quantizer in QUANTIZERS]
    monkeypatch.setattr(compiled, "load", lambda name: None)
    for quantizer, (mean, sizes) in zip(QUANTIZERS, rounds, strict=True):
        slow_mean, slow_sizes = send_in_parts(Encoded(quantizer, server), updates, work, 2)
        assert np.array_equal(mean, slow_mean) and np.array_equal(sizes, slow_sizes)


def test_updates_may_be_tensors():
    work = work_of(runs=2, per_run=2)
    updates = updates_of(work, 9)
    for uplink in (Encoded(QUANTIZERS[0], Mean()), Gathered(QUANTIZERS[1], Mean(), ALONE)):
        from_array = send_in_parts(uplink, updates, work, 2)
        from_tensor = send_in_parts(uplink, torch.from_numpy(updates), work, 2)
        assert np.array_equal(from_array[0], from_tensor[0]) and np.array_equal(from_array[1], from_tensor[1])
