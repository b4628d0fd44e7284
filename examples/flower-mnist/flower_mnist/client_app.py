"""The client: trains on its own share and, through the mod, uploads about 30 bytes instead of the model."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedpaq.flower import quantize_mod
from flower_mnist.task import load_problem, train

app = ClientApp(mods=[quantize_mod()])  # the run config names the quantizer


@app.train()
def train_client(message: Message, context: Context) -> Message:
    """Train the received model on this client's samples."""
    client, settings = int(context.node_config["partition-id"]), context.run_config
    problem = load_problem(int(settings["num-clients"]), int(settings["seed"]))
    params = message.content["arrays"]["params"].numpy()
    round = int(message.content["config"]["server-round"]) - 1
    trained = train(problem, settings, round, client, params)
    content = RecordDict(
        {
            "arrays": ArrayRecord({"params": Array(trained)}),
            "metrics": MetricRecord({"num-examples": len(problem.partition.samples_of(client))}),
        }
    )
    return Message(content, reply_to=message)
