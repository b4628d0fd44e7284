"""UPLINK: from the clients' updates to the mean the server adds, and the bytes it took. Lines 10 and 11.

Encoded     messages are quantized, encoded and aggregated in this process
OnDevice    updates stay on the GPU: quantized and summed there, payload sizes estimated
Gathered    each rank does a share of the clients; the ranks exchange payloads
Summed      the same without quantization: the ranks add up their dense sums
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fedpaq.clients.work import LocalWork
from fedpaq.hardware.ranks import ALONE, Ranks
from fedpaq.problems import Problem
from fedpaq.quantizers import Identity, LowPrecision, Quantizer
from fedpaq.server.aggregation import Aggregation, Mean
from fedpaq.server.encoded import Encoded
from fedpaq.server.gathered import Gathered
from fedpaq.server.on_device import OnDevice
from fedpaq.server.summed import Summed


class Inbox(Protocol):
    """Takes in one round of every run."""

    def send(self, updates: Any, work: LocalWork) -> None:
        """Take the updates (jobs, p) of some work, in client order."""

    def close(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """Return what is added to the params of each run (runs, p), and its payload bytes (runs,)."""


class Uplink(Protocol):
    """Carries updates to the server."""

    @property
    def payload_sizes(self) -> str:
        """How payload bytes are known: ``encoded`` or ``estimated``."""

    def share(self, jobs: int) -> slice:
        """Return which of a round's jobs are done in this process."""

    def open(self, runs: int, dimension: int) -> Inbox:
        """Return an empty inbox for one round."""


def choose_uplink(
    quantizer: Quantizer, aggregation: Aggregation, problem: Problem, ranks: Ranks = ALONE
) -> Uplink:
    """Return the uplink for where the problem's data is; only a plain mean of known messages stays on a GPU."""
    if ranks.size > 1:
        dense = type(aggregation) is Mean and type(quantizer) is Identity
        return Summed(problem.inputs.device, ranks) if dense else Gathered(quantizer, aggregation, ranks)
    on_gpu = problem.inputs.device.type == "cuda"
    if on_gpu and type(aggregation) is Mean and type(quantizer) in (Identity, LowPrecision):
        return OnDevice(quantizer, problem.inputs.device)
    return Encoded(quantizer, aggregation)


__all__ = ["Encoded", "Gathered", "Inbox", "OnDevice", "Summed", "Uplink", "choose_uplink"]
