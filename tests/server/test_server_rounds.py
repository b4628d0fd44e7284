"""A round through every uplink: the same mean and bytes however it is cut, shared, spoiled or compiled."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedpaq
from fedpaq import codec
from fedpaq.clients.work import LocalWork
from fedpaq.hardware.ranks import ALONE, Ranks
from fedpaq.kernels import numba as compiled
from fedpaq.quantizers import RawMessage
from fedpaq.server import Encoded, Gathered, choose_uplink
from fedpaq.server.aggregation import ClippedMean, Mean, TrimmedMean
from fedpaq.server.encoded import is_rejected, payload_bytes, quantize_or_mark_diverged

QUANTIZERS = [fedpaq.LowPrecision(2), fedpaq.LowPrecision(40, 7), fedpaq.Identity()]
SERVERS = [Mean(), ClippedMean(), TrimmedMean(trim=0.3)]


def work_of(runs, per_run, round=3):
    """Work whose samples no uplink looks at: only runs, seeds and clients matter."""
    jobs = runs * per_run
    return LocalWork(
        params=np.zeros((runs, 1), np.float32),
        run_of=np.repeat(np.arange(runs), per_run),
        clients=np.tile(np.arange(per_run) * 3 + 1, runs),
        seeds=np.repeat(np.arange(runs, dtype=np.uint64) + 11, per_run),
        step_sizes=np.ones(runs, np.float32),
        samples=np.zeros((jobs, 1, 1), np.int64),
        round=round,
    )


def updates_of(work, dimension, seed=0):
    return np.random.default_rng(seed).standard_normal((len(work), dimension)).astype(np.float32)


def send_in_parts(uplink, updates, work, runs, cuts=()):
    """Send the jobs of this process, cut at ``cuts``; return (mean, bytes)."""
    mine = uplink.share(len(work))
    updates, work = updates[mine], work.part(mine)
    inbox = uplink.open(runs, updates.shape[1])
    edges = [0, *sorted(min(cut, len(work)) for cut in cuts), len(work)]
    for start, stop in pairwise(edges):
        if stop > start:
            inbox.add(updates[start:stop], work.part(slice(start, stop)))
    return inbox.finish()


def by_hand(quantizer, updates, work, runs):
    """The paper's lines 10 and 11, message by message: the mean of what each client's payload stands for."""
    total, sizes = np.zeros((runs, updates.shape[1])), np.zeros(runs, np.int64)
    for update, key, run in zip(updates, work.keys(), work.run_of.tolist(), strict=True):
        payload = codec.encode(quantizer.quantize(update, key=key))
        codec.decode(payload).add_to(total[run])
        sizes[run] += len(payload)
    return total / (len(work) // runs), sizes


@dataclass(frozen=True)
class Table:
    """Where the threads of one test meet, in place of a network."""

    barrier: threading.Barrier
    places: list[Any]

    def meet(self, rank, thing):
        self.places[rank] = thing
        self.barrier.wait(20)
        everything = list(self.places)
        self.barrier.wait(20)
        return everything


@dataclass(frozen=True, eq=False)
class ThreadRanks(Ranks):
    """Ranks that are threads of this process."""

    table: Table = None

    def all_gather(self, data):
        return self.table.meet(self.rank, bytes(data))


def shared_round(make_uplink, size, updates, work, runs):
    """Do a round in ``size`` threads and return each one's (mean, bytes)."""
    table = Table(threading.Barrier(size), [None] * size)
    ranks = [ThreadRanks(rank, size, table=table) for rank in range(size)]
    with ThreadPoolExecutor(size) as pool:
        rounds = [pool.submit(send_in_parts, make_uplink(each), updates, work, runs) for each in ranks]
        return [done.result(timeout=30) for done in rounds]


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


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("server", SERVERS, ids=lambda server: server.name)
@pytest.mark.parametrize("quantizer", QUANTIZERS, ids=lambda quantizer: quantizer.name)
def test_any_number_of_ranks_gathers_what_one_process_encodes(quantizer, server, size):
    work = work_of(runs=2, per_run=3)
    updates = updates_of(work, 30)
    expected = send_in_parts(Encoded(quantizer, server), updates, work, 2)
    for mean, sizes in shared_round(lambda ranks: Gathered(quantizer, server, ranks), size, updates, work, 2):
        assert np.array_equal(mean, expected[0]) and np.array_equal(sizes, expected[1])


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("lost", [0, 1], ids=["found by the first rank", "found by the last"])
@pytest.mark.parametrize("server", SERVERS, ids=lambda server: server.name)
def test_a_run_that_diverges_on_one_rank_is_lost_on_all_and_the_other_on_none(server, lost, size):
    work = work_of(runs=2, per_run=4)
    updates = updates_of(work, 10)
    quantizer = fedpaq.LowPrecision(3)
    kept = send_in_parts(Encoded(quantizer, server), updates, work, 2)
    updates[5 * lost + 1, 3] = np.inf
    for mean, sizes in shared_round(lambda ranks: Gathered(quantizer, server, ranks), size, updates, work, 2):
        assert np.array_equal(mean[1 - lost], kept[0][1 - lost]) and sizes[1 - lost] == kept[1][1 - lost]
        assert np.isnan(mean[lost]).all()


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


def test_unusable_updates_become_zeros_and_their_runs_are_named():
    work = work_of(runs=3, per_run=2)
    updates = updates_of(work, 5)
    updates[1, 0], updates[4] = np.nan, np.inf
    before = updates.copy()
    messages, diverged = quantize_or_mark_diverged(fedpaq.LowPrecision(2), updates, work)
    assert diverged.tolist() == [0, 2]
    assert [not message.signed_levels.any() for message in messages][1::3] == [True, True]
    usable = [0, 2, 3, 5]
    expected = [fedpaq.LowPrecision(2).quantize(updates[job], key=work.keys()[job]) for job in usable]
    assert [messages[job] for job in usable] == expected
    assert np.array_equal(updates, before, equal_nan=True)


def test_a_quantizer_s_own_refusal_decides_what_is_unusable():
    key = fedpaq.Key(seed=0)
    large = np.full(4, 3e38, np.float32)
    assert is_rejected(fedpaq.LowPrecision(1), large, key) and not is_rejected(
        fedpaq.LowPrecision(1, 1), large, key
    )
    assert not is_rejected(fedpaq.Identity(), large, key)
    assert is_rejected(fedpaq.Identity(), np.full(4, -np.inf, np.float32), key)


def test_other_errors_of_a_quantizer_are_not_taken_for_divergence():
    class Broken(fedpaq.LowPrecision):
        def quantize_batch(self, updates, keys):
            raise fedpaq.errors.ConfigError("quantizer=broken is wrong; mend it")

    with pytest.raises(fedpaq.errors.ConfigError, match="mend it"):
        quantize_or_mark_diverged(Broken(1), np.zeros((2, 3), np.float32), work_of(1, 2))


@pytest.mark.parametrize("server", SERVERS, ids=lambda server: server.name)
def test_without_numba_a_round_is_the_same_to_the_bit(server, monkeypatch):
    work = work_of(runs=2, per_run=3)
    updates = updates_of(work, 25)
    rounds = [send_in_parts(Encoded(quantizer, server), updates, work, 2) for quantizer in QUANTIZERS]
    monkeypatch.setattr(compiled, "load", lambda name: None)
    for quantizer, (mean, sizes) in zip(QUANTIZERS, rounds, strict=True):
        slow_mean, slow_sizes = send_in_parts(Encoded(quantizer, server), updates, work, 2)
        assert np.array_equal(mean, slow_mean) and np.array_equal(sizes, slow_sizes)


def test_a_round_of_a_single_client_and_coordinate_is_carried():
    work = work_of(runs=1, per_run=1)
    for quantizer in QUANTIZERS:
        mean, sizes = send_in_parts(Encoded(quantizer, Mean()), np.full((1, 1), -2.5, np.float32), work, 1)
        assert mean.tolist() == [[-2.5]] and sizes[0] <= 20


def test_other_rounds_are_quantized_with_other_draws():
    updates = updates_of(work_of(1, 2), 60)
    uplink = Encoded(fedpaq.LowPrecision(1), Mean())
    third, again, fourth = (send_in_parts(uplink, updates, work_of(1, 2, round), 1)[0] for round in (3, 3, 4))
    assert np.array_equal(third, again) and not np.array_equal(third, fourth)


def test_updates_may_be_tensors():
    work = work_of(runs=2, per_run=2)
    updates = updates_of(work, 9)
    for uplink in (Encoded(QUANTIZERS[0], Mean()), Gathered(QUANTIZERS[1], Mean(), ALONE)):
        from_array = send_in_parts(uplink, updates, work, 2)
        from_tensor = send_in_parts(uplink, torch.from_numpy(updates), work, 2)
        assert np.array_equal(from_array[0], from_tensor[0]) and np.array_equal(from_array[1], from_tensor[1])


def test_shares_of_one_process_are_everything():
    for uplink in (Encoded(QUANTIZERS[0], Mean()), Gathered(QUANTIZERS[0], Mean(), ALONE)):
        assert list(range(10))[uplink.share(10)] == list(range(10))
        assert uplink.payload_size_source == "encoded"


@pytest.mark.parametrize("dimension", [1, 127, 128, 16_383, 16_384])
def test_raw_payloads_are_counted_to_the_byte_where_the_header_grows(dimension):
    message = RawMessage(np.ones(dimension, np.float32))
    assert codec.raw_bytes(dimension) == len(codec.encode(message)) == payload_bytes([message])[0]


def test_raw_and_quantized_messages_may_be_counted_together():
    messages = [
        RawMessage(np.ones(9, np.float32)),
        fedpaq.LowPrecision(1).quantize(np.ones(9), key=fedpaq.Key(seed=0)),
    ]
    assert payload_bytes(messages) == [len(codec.encode(message)) for message in messages]
    assert payload_bytes([]) == []


class OwnMean(Mean):
    """A server of one's own, which may do anything with messages."""


class OwnIdentity(fedpaq.Identity):
    """A quantizer of one's own."""


@pytest.mark.parametrize(
    ("quantizer", "server", "ranks", "kind"),
    [
        (fedpaq.Identity(), Mean(), Ranks(0, 2), Gathered),
        (OwnIdentity(), Mean(), Ranks(0, 2), Gathered),
        (fedpaq.Identity(), OwnMean(), Ranks(0, 2), Gathered),
        (fedpaq.LowPrecision(1), Mean(), Ranks(1, 2), Gathered),
        (fedpaq.Identity(), ClippedMean(), Ranks(1, 2), Gathered),
        (fedpaq.Identity(), Mean(), ALONE, Encoded),
        (OwnIdentity(), OwnMean(), ALONE, Encoded),
    ],
)
def test_several_ranks_gather_and_one_process_encodes(quantizer, server, ranks, kind, logistic):
    assert type(choose_uplink(quantizer, server, logistic, ranks)) is kind
