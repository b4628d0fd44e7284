"""Gathered: any number of ranks makes what one process makes, also where a run diverges."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import fedpaq
from fedpaq.hardware.ranks import Ranks
from fedpaq.server.aggregation import WeightedMean
from fedpaq.server.encoded import Encoded
from fedpaq.server.gathered import Gathered
from small_rounds import QUANTIZERS, SERVERS, send_in_parts, updates_of, work_of


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


def test_ranks_weight_clients_as_one_process_does():
    work = work_of(runs=2, per_run=3)
    updates, quantizer = updates_of(work, 30), fedpaq.LowPrecision(levels=2)
    weights = lambda clients: 1 + 10 * np.asarray(clients)
    expected = send_in_parts(Encoded(quantizer, WeightedMean(), weights), updates, work, 2)
    uniform = send_in_parts(Encoded(quantizer, WeightedMean()), updates, work, 2)
    assert not np.array_equal(expected[0], uniform[0])
    make = lambda ranks: Gathered(quantizer, WeightedMean(), ranks, weights)
    for mean, _ in shared_round(make, 3, updates, work, 2):
        np.testing.assert_array_equal(mean, expected[0])
