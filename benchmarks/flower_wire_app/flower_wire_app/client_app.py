"""A client that takes a random step."""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedpaq.flower import quantize_mod

app = ClientApp()


def mod(message, context, call_next):
    """The mod with the run's own levels."""
    return quantize_mod(levels=context.run_config["levels"] or None)(message, context, call_next)


@app.evaluate(mods=[mod])
def evaluate(message, context):
    """Measure nothing."""
    return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1})}), reply_to=message)


@app.train(mods=[mod])
def train(message, context):
    """Add noise."""
    params = message.content["arrays"]["params"].numpy()
    rng = np.random.default_rng(context.node_config["partition-id"])
    trained = params + rng.normal(size=params.shape).astype(np.float32)
    content = {"arrays": ArrayRecord({"params": Array(trained)}), "metrics": MetricRecord({"num-examples": 1})}
    return Message(RecordDict(content), reply_to=message)
