"""Summed: without quantization the ranks add up dense sums; p doubles travel, however many clients.

The order of additions depends on the number of ranks, so params agree to rounding in double precision,
not to the bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedpaq.clients.work import LocalWork
from fedpaq.hardware.devices import to_tensor
from fedpaq.hardware.ranks import Ranks
from fedpaq.server.payload_sizes import raw_bytes

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Summed:
    """For the plain mean of ``Identity`` messages."""

    device: torch.device
    ranks: Ranks
    payload_sizes: str = "encoded"

    def share(self, jobs: int) -> slice:
        """This rank's jobs."""
        return self.ranks.share(jobs)

    def open(self, runs: int, dimension: int) -> SummedInbox:
        """Return an empty inbox for one round."""
        return SummedInbox(self, runs, dimension)


class SummedInbox:
    """One round of every run; a non-finite update makes its run's sum NaN or infinite."""

    def __init__(self, uplink: Summed, runs: int, dimension: int) -> None:
        self._uplink = uplink
        # The last column counts messages: one collective for both.
        self._total = torch.zeros(runs, dimension + 1, dtype=torch.float64, device=uplink.device)

    def send(self, updates: Any, work: LocalWork) -> None:
        """Take the updates (jobs, p) of some of this rank's work."""
        for run in np.unique(work.run_of).tolist():
            first, last = np.searchsorted(work.run_of, [run, run + 1])
            rows = to_tensor(updates[first:last], self._uplink.device)
            self._total[run, :-1] += rows.sum(0, dtype=torch.float64)
            self._total[run, -1] += len(rows)

    def close(self) -> tuple[Float64, Int64]:
        """Return what is added to the params of each run (runs, p), and its payload bytes (runs,)."""
        self._uplink.ranks.all_reduce(self._total)
        total = self._total.cpu().numpy()
        arrived = total[:, -1:]
        return total[:, :-1] / arrived, arrived[:, 0].astype(np.int64) * raw_bytes(total.shape[1] - 1)
