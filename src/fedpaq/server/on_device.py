"""OnDevice: updates never leave the GPU. Quantized and summed there, payload sizes estimated.

The sum equals the CPU's to the bit. The length of each payload is computed where the levels are
(``payload_sizes``): the totals and the lengths are all that travels to the host.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedpaq.clients.work import LocalWork, whole
from fedpaq.hardware.devices import to_tensor
from fedpaq.kernels import cuda
from fedpaq.quantizers import Identity, LowPrecision
from fedpaq.server.payload_sizes import estimated_bytes, raw_bytes

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class OnDevice:
    """For the plain mean of ``LowPrecision`` or ``Identity`` messages."""

    quantizer: Any
    device: torch.device

    @property
    def payload_sizes(self) -> str:
        """How payload bytes are known: a float32 payload's length needs no estimate."""
        return "encoded" if isinstance(self.quantizer, Identity) else "estimated"

    def share(self, jobs: int) -> slice:
        """All jobs are done here."""
        return whole(jobs)

    def open(self, runs: int, dimension: int) -> DeviceInbox:
        """Return an empty inbox for one round."""
        return DeviceInbox(self, runs, dimension)


class DeviceInbox:
    """One round of every run; runs arrive one after the other, each in client order."""

    def __init__(self, uplink: OnDevice, runs: int, dimension: int) -> None:
        self._uplink, self._kernels = uplink, cuda.load("low_precision")
        self._total = torch.zeros(runs, dimension, dtype=torch.float64, device=uplink.device)
        self._arrived = np.zeros(runs, np.int64)
        self._payload_bytes = np.zeros(runs)

    def send(self, updates: Tensor, work: LocalWork) -> None:
        """Take the updates (jobs, p) of some work; a non-finite one makes its run's sum NaN."""
        device, runs = self._uplink.device, len(self._arrived)
        quantizer, first_job = self._uplink.quantizer, np.searchsorted(work.run_of, np.arange(runs + 1))
        place = to_tensor(first_job, device)
        if isinstance(quantizer, LowPrecision):
            batch = self._kernels.quantize(
                updates,
                to_tensor(work.seeds, device),
                work.round,
                to_tensor(work.clients, device),
                quantizer.levels,
                quantizer.bucket_size,
            )
            self._kernels.add_levels(batch, place, self._total)
            sizes = estimated_bytes(batch, updates.shape[1], quantizer, self._kernels.BLOCK)
            np.add.at(self._payload_bytes, work.run_of, sizes)
        else:
            self._kernels.add_updates(updates, place, self._total)
        self._arrived += np.diff(first_job)

    def close(self) -> tuple[Float64, Int64]:
        """Return what is added to the params of each run (runs, p), and its payload bytes (runs,)."""
        quantizer, dimension = self._uplink.quantizer, self._total.shape[1]
        total = self._total.cpu().numpy()
        if isinstance(quantizer, Identity):
            return total / self._arrived[:, None], self._arrived * raw_bytes(dimension)
        return total / self._arrived[:, None], np.rint(self._payload_bytes).astype(np.int64)
