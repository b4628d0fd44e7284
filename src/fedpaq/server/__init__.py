"""SERVER: from the clients' updates to the mean the server adds, and the bytes it took. Lines 10 and 11."""

from fedpaq.server.aggregation import (
    AGGREGATIONS,
    Aggregation,
    ClippedMean,
    Mean,
    TrimmedMean,
    WeightedMean,
    find_aggregation,
)
from fedpaq.server.encoded import Encoded
from fedpaq.server.gathered import Gathered
from fedpaq.server.on_device import OnDevice
from fedpaq.server.uplink import Uplink, choose_uplink

__all__ = [
    "AGGREGATIONS",
    "Aggregation",
    "ClippedMean",
    "Encoded",
    "Gathered",
    "Mean",
    "OnDevice",
    "TrimmedMean",
    "Uplink",
    "WeightedMean",
    "choose_uplink",
    "find_aggregation",
]
