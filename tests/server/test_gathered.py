"""Gathered: any number of ranks makes what one process makes, also where a run diverges."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import fedpaq
from fedpaq.clients.work import LocalWork
from fedpaq.hardware.ranks import Ranks
from fedpaq.server import Encoded, Gathered
from fedpaq.server.aggregation import ClippedMean, Mean, TrimmedMean

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
