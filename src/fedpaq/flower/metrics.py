"""Metrics of a round, as plain numbers for Flower's MetricRecord: what clients reported, what it cost.

Metrics are weighted, by default by examples. The model's mean is not: see mean.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import MetricRecord, RecordDict

from fedpaq.cost_model import CostModel
from fedpaq.flower.replies import usable_weight
from fedpaq.flower.rounds import ClosedRound, RoundRecord

Metrics = dict[str, Any]  # numbers and lists of numbers


def mean_metrics(replies: Sequence[RecordDict], weighted_by: str) -> MetricRecord:
    """Return the mean of every metric that all clients report, weighted as Flower's FedAvg does.

    Where no client gives a usable weight, all have the same. A list whose length differs between
    clients is left out.

    >>> replies = [RecordDict({"m": MetricRecord({"loss": loss, "n": loss})}) for loss in (1, 3)]
    >>> mean_metrics(replies, "n")
    {'loss': 2.5}
    """
    reports = [record for reply in replies for record in list(reply.metric_records.values())[:1]]
    if not reports:
        return MetricRecord()
    weights = np.array([usable_weight(report.get(weighted_by)) for report in reports])
    weights = weights / weights.sum() if weights.sum() > 0 else np.full(len(reports), 1 / len(reports))
    means: Metrics = {}
    for name in reports[0]:
        if name != weighted_by and all(name in report for report in reports):
            values = [np.atleast_1d(np.asarray(report[name], np.float64)) for report in reports]
            if all(value.shape == values[0].shape for value in values):
                mean = (weights @ np.stack(values)).tolist()
                means[name] = mean if isinstance(reports[0][name], list) else mean[0]
    return MetricRecord(means)


@dataclass(frozen=True)
class Pricing:
    """How to model a round's time: the network, and tau B gradients per client where that is known."""

    cost_model: CostModel
    gradients_per_client: int | None
    seed: int

    def seconds(self, closed: ClosedRound, dimension: int) -> float:
        """Return what the round would take, as the simulator charges it: whole uploads, models sent, computing."""
        price, uploads = self.cost_model, max(len(closed.counted), 1)
        bits = 8 * sum(len(upload.payload) + len(upload.exact) for upload in closed.counted)
        seconds = price.communication_seconds(bits, dimension, uploads) + price.round_seconds
        if closed.downloads:
            seconds += price.download_seconds(np.array(closed.downloads, np.int64))
        if self.gradients_per_client is not None and closed.counted:
            clients = np.array([upload.client for upload in closed.counted], np.int64)
            gradients = np.full(len(clients), self.gradients_per_client, np.int64)
            seconds += price.computation_seconds(self.seed, closed.server_round - 1, clients, gradients)
        return seconds


def record_of(closed: ClosedRound, dimension: int, reported: Mapping[str, Any], pricing: Pricing | None) -> RoundRecord:
    """Return what is kept of a round; ``reported`` is what its clients measured."""
    return RoundRecord(
        server_round=closed.server_round,
        asked=closed.asked,
        counted=[upload.client for upload in closed.counted],
        rejected=closed.rejected,
        late=closed.late,
        metrics=dict(reported) | round_metrics(closed, dimension, pricing),
        payload_bytes=sum(len(upload.payload) for upload in closed.counted),
        exact_bytes=sum(len(upload.exact) for upload in closed.counted),
        download_bytes=closed.download_bytes,
    )


def round_metrics(closed: ClosedRound, dimension: int, pricing: Pricing | None) -> Metrics:
    """Return clients and bytes of a round.

    ``times-smaller`` compares whole uploads, payload and exact arrays, with float32 and exact arrays.
    """
    uploads = closed.counted
    payload, raw = sum(len(upload.payload) for upload in uploads), 4 * dimension * len(uploads)
    exact = sum(len(upload.exact) for upload in uploads)
    values: Metrics = {
        "fedpaq-clients-asked": len(closed.asked),
        "fedpaq-clients-counted": len(uploads),
        "fedpaq-clients-rejected": len(closed.rejected),
        "fedpaq-clients-late": len(closed.late),
        "fedpaq-payload-bytes": payload,
        "fedpaq-exact-bytes": exact,
        "fedpaq-float32-bytes": raw,
        "fedpaq-download-bytes": closed.download_bytes,
        "fedpaq-times-smaller": (raw + exact) / (payload + exact) if payload else 0.0,
    }
    if pricing is not None:
        values["fedpaq-modelled-seconds"] = pricing.seconds(closed, dimension)
    return values
