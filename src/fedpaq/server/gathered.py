"""Gathered: each rank does a share of the clients, and the ranks exchange payloads.

What travels is what a real server would receive: kilobytes, not dense floats. Every rank decodes all
payloads and adds them in client order, so params are the same, to the bit, for any number of ranks.

    one rank's part of a round:  lengths of its payloads | runs it found diverged | its payloads
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpaq import codec
from fedpaq.clients.work import LocalWork
from fedpaq.hardware.devices import to_tensor
from fedpaq.hardware.ranks import Ranks
from fedpaq.kernels import cuda
from fedpaq.quantizers import LowPrecision, Message, QuantizedBatch, Quantizer, RawMessage
from fedpaq.server.aggregation import Aggregation, Mean
from fedpaq.server.encoded import quantize_usable

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
LENGTH = np.dtype("<i8")


@dataclass(frozen=True)
class Gathered:
    """For any quantizer and aggregation."""

    quantizer: Quantizer
    aggregation: Aggregation
    ranks: Ranks
    payload_sizes: str = "encoded"

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

    def send(self, updates: Any, work: LocalWork) -> None:
        """Take the updates (jobs, p) of some of this rank's work."""
        messages, diverged = _quantize(self._uplink.quantizer, updates, work)
        self._diverged[diverged] = 1
        self._payloads += codec.encode_batch(messages)

    def close(self) -> tuple[Float64, Int64]:
        """Return what is added to the params of each run (runs, p), and its payload bytes (runs,)."""
        lengths = np.array([len(payload) for payload in self._payloads], LENGTH)
        front = len(lengths).to_bytes(8, "little") + lengths.tobytes() + self._diverged.tobytes()
        parts = self._uplink.ranks.all_gather(b"".join([front, *self._payloads]))
        payloads, diverged = [], np.zeros_like(self._diverged)
        for part in parts:
            theirs, found = _unpacked(part, len(diverged))
            payloads += theirs
            diverged |= found
        runs = len(diverged)
        run_of = np.repeat(np.arange(runs), len(payloads) // runs)  # jobs come run after run
        sizes = np.array([len(payload) for payload in payloads], np.int64)
        return self._mean(payloads, run_of, np.flatnonzero(diverged)), sizes.reshape(runs, -1).sum(axis=1)

    def _mean(self, payloads: Sequence[memoryview], run_of: Int64, diverged: Int64) -> Float64:
        if type(self._uplink.aggregation) is Mean:  # needs no messages: only their non-zeros are touched
            total = np.zeros((len(self._diverged), self._dimension))
            for payload, run in zip(payloads, run_of.tolist(), strict=True):
                codec.accumulate(payload, total[run])
            total[diverged] = np.nan
            return total / (len(payloads) // len(total))
        arrivals = self._uplink.aggregation.start(len(self._diverged), self._dimension)
        nothing = RawMessage(np.full(self._dimension, np.nan, np.float32))
        arrivals.add([nothing] * len(diverged), diverged)
        for job, payload in enumerate(payloads):
            arrivals.add([codec.decode(payload, dimension=self._dimension)], run_of[job : job + 1])
        return arrivals.mean()


def _unpacked(part: bytes, runs: int) -> tuple[list[memoryview], npt.NDArray[np.uint8]]:
    """Return the payloads of one rank, in order, and a flag for each run it found diverged."""
    count = int.from_bytes(part[:8], "little")
    lengths = np.frombuffer(part, LENGTH, count, 8)
    start = 8 + lengths.nbytes
    ends = start + runs + np.cumsum(lengths)
    view = memoryview(part)
    payloads = [view[end - length : end] for end, length in zip(ends.tolist(), lengths.tolist(), strict=True)]
    return payloads, np.frombuffer(part, np.uint8, runs, start)


def _quantize(quantizer: Quantizer, updates: Any, work: LocalWork) -> tuple[Sequence[Message], Int64]:
    """Return the messages and the runs diverged; updates on a GPU are quantized there, levels fetched."""
    if not (getattr(updates, "is_cuda", False) and isinstance(quantizer, LowPrecision)):
        return quantize_usable(quantizer, updates, work)
    device, levels, bucket_size = updates.device, quantizer.levels, quantizer.bucket_size
    batch = cuda.load("low_precision").quantize(
        updates,
        to_tensor(work.seeds, device),
        work.round,
        to_tensor(work.clients, device),
        levels,
        bucket_size,
    )
    norms = batch.norms.cpu().numpy()
    usable = np.isfinite(norms).all(axis=1)
    signed = batch.signed_levels[:, : updates.shape[1]].cpu().numpy()
    signed[~usable], norms[~usable] = 0, 0.0
    return QuantizedBatch(signed, norms, levels, bucket_size), np.unique(work.run_of[~usable])
