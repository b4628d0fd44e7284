"""OnDevice: updates never leave the GPU. Quantized, summed and averaged there; lengths travel to the host."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedpaq.arrays import Int64
from fedpaq.clients.work import LocalWork, whole
from fedpaq.hardware.devices import to_tensor
from fedpaq.quantizers import Quantizer
from fedpaq.server.device_batch import DEVICE_BATCHES


@dataclass(frozen=True)
class OnDevice:
    """For the plain mean of messages that a GPU makes (``DEVICE_BATCHES``)."""

    quantizer: Quantizer
    device: torch.device
    share = staticmethod(whole)  # all jobs are done here

    @property
    def payload_size_source(self) -> str:
        """How payload bytes are known."""
        source: str = DEVICE_BATCHES[type(self.quantizer)].size_source
        return source

    def open(self, runs: int, dimension: int) -> DeviceInbox:
        """Return an empty inbox for one round."""
        return DeviceInbox(self, runs, dimension)


class DeviceInbox:
    """One round of every run; runs arrive one after the other, each in client order."""

    def __init__(self, uplink: OnDevice, runs: int, dimension: int) -> None:
        self._uplink = uplink
        self._total = torch.zeros(runs, dimension, dtype=torch.float64, device=uplink.device)
        self._arrived, self._payload_bytes = np.zeros(runs, np.int64), np.zeros(runs)

    def add(self, updates: Tensor, work: LocalWork) -> None:
        """Take the updates (jobs, p) of some work; a non-finite one makes its run's sum NaN."""
        quantizer = self._uplink.quantizer
        first_job = np.searchsorted(work.run_of, np.arange(len(self._arrived) + 1))
        batch = DEVICE_BATCHES[type(quantizer)](quantizer, updates, work)
        batch.add_to(self._total, to_tensor(first_job, self._uplink.device))
        np.add.at(self._payload_bytes, work.run_of, batch.payload_bytes())
        self._arrived += np.diff(first_job)

    def finish(self) -> tuple[Tensor, Int64]:
        """Return what is added to the params of each run (runs, p), on the GPU, and its payload bytes (runs,)."""
        mean = self._total / to_tensor(self._arrived[:, None], self._uplink.device)
        return mean, np.rint(self._payload_bytes).astype(np.int64)
