"""Gathered: each rank does a share of the clients, and the ranks exchange payloads.

What travels is what a real server would receive: kilobytes where messages are quantized. Every rank adds all
payloads in client order, so params are the same, to the bit, for any number of ranks.

    one rank's part of a round:  lengths of its payloads | runs it found diverged | its payloads
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpaq import codec
from fedpaq.clients.work import LocalWork
from fedpaq.hardware.ranks import Ranks
from fedpaq.quantizers import Quantizer
from fedpaq.server.aggregation import Aggregation
from fedpaq.server.encoded import add_diverged, quantize_or_mark_diverged

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
LENGTH = np.dtype("<i8")


@dataclass(frozen=True)
class Gathered:
    """For any quantizer and aggregation."""

    quantizer: Quantizer
    aggregation: Aggregation
    ranks: Ranks
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
        self._diverged = np.zeros(runs, np.uint8)

    def add(self, updates: Any, work: LocalWork) -> None:
        """Take the updates (jobs, p) of some of this rank's work."""
        messages, diverged = quantize_or_mark_diverged(self._uplink.quantizer, updates, work)
        self._diverged[diverged] = 1
        self._payloads += codec.encode_batch(messages)

    def finish(self) -> tuple[Float64, Int64]:
        """Return what is added to the params of each run (runs, p), and its payload bytes (runs,)."""
        lengths = np.array([len(payload) for payload in self._payloads], LENGTH)
        front = len(lengths).to_bytes(8, "little") + lengths.tobytes() + self._diverged.tobytes()
        payloads, diverged = [], np.zeros_like(self._diverged)
        for part in self._uplink.ranks.all_gather(b"".join([front, *self._payloads])):
            theirs, found = _unpacked(part, len(diverged))
            payloads += theirs
            diverged |= found
        runs = len(diverged)
        accumulator = self._uplink.aggregation.start(runs, self._dimension)
        add_diverged(accumulator, np.flatnonzero(diverged), self._dimension)
        for job, payload in enumerate(payloads):
            accumulator.add_payload(payload, job * runs // len(payloads))  # jobs come run after run
        sizes = np.array([len(payload) for payload in payloads], np.int64)
        return accumulator.mean(), sizes.reshape(runs, -1).sum(axis=1)


def _unpacked(part: bytes, runs: int) -> tuple[list[memoryview], npt.NDArray[np.uint8]]:
    """Return the payloads of one rank, in order, and a flag for each run it found diverged."""
    count = int.from_bytes(part[:8], "little")
    lengths = np.frombuffer(part, LENGTH, count, 8)
    start = 8 + lengths.nbytes
    ends = start + runs + np.cumsum(lengths)
    view = memoryview(part)
    payloads = [view[end - length : end] for end, length in zip(ends.tolist(), lengths.tolist(), strict=True)]
    return payloads, np.frombuffer(part, np.uint8, runs, start)
