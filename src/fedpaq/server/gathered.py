"""Gathered: each rank does a share of the clients, and the ranks exchange payloads.

What travels is what a real server would receive: kilobytes where messages are quantized. Every rank adds all
payloads in client order, so params are the same, to the bit, for any number of ranks.

    one rank's part of a round:  number of jobs | lengths, seeds, clients of its jobs | runs diverged | payloads
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpaq import codec
from fedpaq.arrays import AnyArray, Float64, Int64, UInt8
from fedpaq.clients.work import LocalWork
from fedpaq.hardware.ranks import Ranks
from fedpaq.quantizers import Keys, Quantizer
from fedpaq.server.aggregation import Aggregation
from fedpaq.server.encoded import add_diverged, quantize_or_mark_diverged
from fedpaq.server.mean import MeanAccumulator

JOB = np.dtype([("length", "<i8"), ("seed", "<u8"), ("client", "<i8")])


@dataclass(frozen=True)
class Gathered:
    """For any quantizer and aggregation."""

    quantizer: Quantizer
    aggregation: Aggregation
    ranks: Ranks
    weights: Callable[[Int64], Int64] | None = None  # of clients, where the mean is weighted
    payload_size_source: str = "encoded"

    def share(self, jobs: int) -> slice:
        """This rank's jobs."""
        return self.ranks.share(jobs)

    def open(self, runs: int, dimension: int) -> GatheredInbox:
        """Return an empty inbox for one round."""
        return GatheredInbox(self, runs, dimension)


class GatheredInbox:
    """One round of every run."""

    def __init__(self, uplink: Gathered, runs: int, dimension: int) -> None:
        self._uplink, self._dimension = uplink, dimension
        self._payloads: list[bytes] = []
        self._jobs: list[AnyArray] = [np.empty(0, JOB)]
        self._diverged, self._round = np.zeros(runs, np.uint8), 0

    def add(self, updates: Any, work: LocalWork) -> None:
        """Take the updates (jobs, p) of some of this rank's work."""
        messages, diverged = quantize_or_mark_diverged(self._uplink.quantizer, updates, work)
        self._diverged[diverged] = 1
        payloads = codec.encode_batch(messages)
        jobs = np.empty(len(payloads), JOB)
        jobs["length"], jobs["seed"], jobs["client"] = ([len(each) for each in payloads], work.seeds, work.clients)
        self._payloads += payloads
        self._jobs.append(jobs)
        self._round = work.round

    def finish(self) -> tuple[Float64, Int64]:
        """Return what is added to the params of each run (runs, p), and its payload bytes (runs,)."""
        mine = np.concatenate(self._jobs)
        front = len(mine).to_bytes(8, "little") + mine.tobytes() + self._diverged.tobytes()
        parts = self._uplink.ranks.all_gather(b"".join([front, *self._payloads]))
        runs = len(self._diverged)
        unpacked = [_unpacked(part, runs) for part in parts]
        jobs = np.concatenate([jobs for jobs, _, _ in unpacked])
        payloads = [payload for _, payloads, _ in unpacked for payload in payloads]
        diverged = np.bitwise_or.reduce([found for _, _, found in unpacked])
        keys = Keys(jobs["seed"], np.full(len(jobs), self._round, np.int64), jobs["client"])
        accumulator, weights = self._uplink.aggregation.start(runs, self._dimension), self._uplink.weights
        add_diverged(accumulator, np.flatnonzero(diverged), self._dimension)
        for job, (payload, key) in enumerate(zip(payloads, keys, strict=True)):
            run = job * runs // len(jobs)  # jobs come run after run
            if weights is not None and isinstance(accumulator, MeanAccumulator):
                accumulator.add_payload(payload, run, key, float(weights(jobs["client"][job])))
            else:
                accumulator.add_payload(payload, run, key)
        return accumulator.mean(), jobs["length"].reshape(runs, -1).sum(axis=1)


def _unpacked(part: bytes, runs: int) -> tuple[AnyArray, list[memoryview], UInt8]:
    """Return the jobs of one rank, their payloads, and a flag for each run it found diverged."""
    count = int.from_bytes(part[:8], "little")
    jobs = np.frombuffer(part, JOB, count, 8)
    start = 8 + jobs.nbytes
    ends = start + runs + np.cumsum(jobs["length"])
    view = memoryview(part)
    payloads = [view[end - size : end] for end, size in zip(ends.tolist(), jobs["length"].tolist(), strict=True)]
    return jobs, payloads, np.frombuffer(part, np.uint8, runs, start)
