"""Uplink: how the clients' updates reach the server's mean, and which way suits a run.

Encoded     messages are quantized, encoded and aggregated in this process
OnDevice    updates stay on the GPU: quantized and summed there, payload sizes estimated
Gathered    each rank does a share of the clients; the ranks exchange payloads
"""

from typing import Any, Protocol

from fedpaq.arrays import Int64
from fedpaq.clients.work import LocalWork
from fedpaq.hardware.ranks import ALONE, Ranks
from fedpaq.problems import Problem
from fedpaq.quantizers import Quantizer
from fedpaq.server.aggregation import Aggregation, Mean, WeightedMean
from fedpaq.server.device_batch import has_device_batch
from fedpaq.server.encoded import Encoded
from fedpaq.server.gathered import Gathered
from fedpaq.server.on_device import OnDevice


class Inbox(Protocol):
    """Takes in one round of every run."""

    def add(self, updates: Any, work: LocalWork) -> None:
        """Take the updates (jobs, p) of some work, in client order."""

    def finish(self) -> tuple[Any, Int64]:
        """Return what is added to the params of each run (runs, p), and its payload bytes (runs,).

        In double precision: an array, or a tensor where a GPU made it.
        """


class Uplink(Protocol):
    """Carries updates to the server."""

    @property
    def payload_size_source(self) -> str:
        """How payload bytes are known: ``encoded`` or ``estimated``."""

    def share(self, jobs: int) -> slice:
        """Return which of a round's jobs are done in this process."""

    def open(self, runs: int, dimension: int) -> Inbox:
        """Return an empty inbox for one round."""


def choose_uplink(quantizer: Quantizer, aggregation: Aggregation, problem: Problem, ranks: Ranks = ALONE) -> Uplink:
    """Return the uplink for where the problem's data is; only a plain mean of known messages stays on a GPU."""
    weights = problem.partition.sizes if isinstance(aggregation, WeightedMean) else None
    if ranks.size > 1:
        return Gathered(quantizer, aggregation, ranks, weights)
    on_gpu = problem.inputs.device.type == "cuda"
    if on_gpu and type(aggregation) is Mean and has_device_batch(quantizer):
        return OnDevice(quantizer, problem.inputs.device)
    return Encoded(quantizer, aggregation, weights)
