"""A client that takes a step drawn from round and number, and keeps the payload that leaves it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedpaq.flower import quantize_mod


def keep(message, context, call_next):
    """Write the payload to <folder>/payloads/<round>-<client>; one that differs from an earlier one beside it."""
    asked = message.content["fedpaq"]
    at = f"{asked.get('round')}-{asked.get('client')}"
    reply = call_next(message, context)
    if asked.get("round") is not None:
        path = Path(context.run_config["folder"]) / "payloads" / at
        payload = reply.content["fedpaq"]["payload"]
        if path.exists() and path.read_bytes() != payload:
            path = path.with_suffix(".differs")
        part = path.with_suffix(f".{os.getpid()}.part")
        part.write_bytes(payload)
        part.replace(path)
    return reply


app = ClientApp(mods=[keep, quantize_mod()])


@app.train()
def train(message, context):
    """Add noise that depends on round and client."""
    params = message.content["arrays"]["params"].numpy()
    draws = np.random.default_rng([message.content["config"]["server-round"], context.node_config["partition-id"]])
    trained = params + draws.normal(size=params.shape).astype(np.float32)
    content = {"arrays": ArrayRecord({"params": Array(trained)}), "metrics": MetricRecord({"num-examples": 1})}
    return Message(RecordDict(content), reply_to=message)
