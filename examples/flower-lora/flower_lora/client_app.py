"""The client: trains the adapter on its own images; through the mod a few hundred bytes go up."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedpaq.flower import quantize_mod
from flower_lora.task import adapter, fit, load_model, share

app = ClientApp(mods=[quantize_mod()])  # the run config names the quantizer


@app.train()
def train(message: Message, context: Context) -> Message:
    """Put the received adapter on the frozen network, train it and send it back."""
    client, settings = int(context.node_config["partition-id"]), context.run_config
    model = load_model(int(settings["rank"]))
    model.load_state_dict(message.content["arrays"].to_torch_state_dict(), strict=False)
    inputs, labels = share(client, int(settings["num-clients"]))
    fit(
        model,
        inputs,
        labels,
        steps=int(settings["local-steps"]),
        batch_size=int(settings["batch-size"]),
        learning_rate=float(settings["learning-rate"]),
        seed=1000 * int(message.content["config"]["server-round"]) + client,
    )
    metrics = MetricRecord({"num-examples": len(inputs)})
    return Message(RecordDict({"arrays": ArrayRecord(adapter(model)), "metrics": metrics}), reply_to=message)
