"""The example's client with one more mod outside: it keeps what leaves the client."""

from __future__ import annotations

from pathlib import Path

from flower_mnist.client_app import train_client
from flwr.clientapp import ClientApp

from fedpaq.flower import quantize_mod


def keep_payload(message, context, call_next):
    """Write the payload of a reply to <folder>/<round>-<client>."""
    round = message.content["fedpaq"].get("round")
    reply = call_next(message, context)
    if round is not None:
        name = f"{round}-{context.node_config['partition-id']}"
        payload = reply.content["fedpaq"]["payload"]
        (Path(context.run_config["payloads"]) / name).write_bytes(payload)
    return reply


app = ClientApp(mods=[keep_payload, quantize_mod(levels=1)])
app.train()(train_client)
