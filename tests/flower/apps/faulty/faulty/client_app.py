"""A client whose outermost mod misbehaves in the rounds it is told to."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from faulty.task import damaged, dawdle, faults_of, local_params
from fedpaq.flower import quantize_mod

DELAYS = {"slow": 5.0, "hangs": 600.0}  # seconds


def misbehave(message, context, call_next):
    """Raise, dawdle, or damage the payload."""
    asked = message.content["fedpaq"]
    at = (asked.get("round"), asked.get("client"))
    kind = faults_of(context.run_config["faults"]).get(at)
    if kind == "raises":
        raise RuntimeError("disk on fire")
    if kind in DELAYS:
        dawdle(context.run_config["folder"], *at, DELAYS[kind])
    reply = call_next(message, context)
    if kind is not None and kind not in DELAYS:
        reply.content["fedpaq"]["payload"] = damaged(reply.content["fedpaq"]["payload"], kind)
    return reply


app = ClientApp(mods=[misbehave, quantize_mod(levels=1)])


@app.train()
def train(message, context):
    """One local step."""
    round = message.content["config"]["server-round"] - 1
    params = message.content["arrays"]["w"].numpy()
    trained = local_params(params, round, context.node_config["partition-id"])
    content = {"arrays": ArrayRecord({"w": Array(trained)}), "metrics": MetricRecord({"num-examples": 1})}
    return Message(RecordDict(content), reply_to=message)
