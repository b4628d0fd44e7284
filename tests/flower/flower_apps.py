"""Small Flower apps for tests: a numeric one, and one whose clients do the simulator's own local steps."""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedpaq.clients import train_one_client
from fedpaq.flower import protocol, quantize_mod
from flower.in_process_grid import InProcessGrid


def record(**arrays) -> ArrayRecord:
    """Arrays as a Flower record."""
    return ArrayRecord({name: Array(np.asarray(values)) for name, values in arrays.items()})


def drifting_app(*mods) -> ClientApp:
    """Client i moves every float array by 0.1 (i + 1) and counts in the integer ones; evaluates to i."""
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message, context):
        client = context.node_config.get("partition-id", 0)
        arrays = {name: array.numpy() for name, array in message.content["arrays"].items()}
        moved = {
            name: (values + np.asarray(0.1 * (client + 1), values.dtype))
            if values.dtype.kind == "f"
            else np.asarray(values + client + 1, values.dtype)
            for name, values in arrays.items()
        }
        metrics = MetricRecord({"num-examples": client + 1, "train-loss": float(client)})
        content = RecordDict({"arrays": record(**moved), "metrics": metrics})
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        client = context.node_config.get("partition-id", 0)
        mean = np.mean([array.numpy().mean() for array in message.content["arrays"].values()])
        metrics = MetricRecord({"num-examples": 1, "client": float(client), "mean": float(mean)})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def quantizing(nodes=3, **more) -> InProcessGrid:
    """A grid of drifting clients with one level."""
    return InProcessGrid(drifting_app(quantize_mod(levels=1)), nodes, **more)


def problem_app(problem, config, *mods, **settings) -> ClientApp:
    """Clients that do what ``fedpaq.train(..., executor="sequential")`` does; ``mods`` come outermost."""
    app = ClientApp(mods=[*mods, quantize_mod(**(settings or {"levels": 1}))])

    @app.train()
    def train(message, context):
        trained = train_one_client(
            problem,
            config,
            round=message.content["config"]["server-round"] - 1,
            client=context.node_config["partition-id"],
            params=message.content["arrays"]["params"].numpy(),
        )
        examples = int(problem.partition.sizes()[context.node_config["partition-id"]])
        content = RecordDict({"arrays": record(params=trained), "metrics": MetricRecord({"num-examples": examples})})
        return Message(content, reply_to=message)

    return app


def forged(reply: Message, payload: bytes, exact: bytes = b"") -> Message:
    """A reply with other bytes in the place of its payload."""
    array = Array(dtype="uint8", shape=(len(payload),), stype="fedpaq.payload", data=payload)
    reply.content["arrays"] = ArrayRecord({"fedpaq.payload": array})
    reply.content["fedpaq"] = ConfigRecord({"version": protocol.VERSION, "exact": exact})
    return reply


def payload_of(reply: Message) -> bytes | None:
    """The payload in a reply, if it holds one."""
    record = reply.content.config_records.get("fedpaq", {})
    if "payload" in record:
        return record["payload"]
    for found in reply.content.array_records.values():
        if "fedpaq.payload" in found:
            return found["fedpaq.payload"].data
    return None
