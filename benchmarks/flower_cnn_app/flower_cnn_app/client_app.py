"""The client: a plain PyTorch app, with the mod."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedpaq.flower import quantize_mod
from flower_cnn_app.task import load_share, make_net
from flower_cnn_app.task import train as train_net


def make_app(*mods) -> ClientApp:
    """Return the app with these mods."""
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        """Train for one epoch at the server's learning rate."""
        settings, client = context.run_config, int(context.node_config["partition-id"])
        config, seed = message.content["config"], int(settings["seed"])
        net = make_net(seed)
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        images, labels = load_share(client, int(settings["num-clients"]), seed)
        draws = 1_000_000 * seed + 1_000 * int(config["server-round"]) + client
        loss = train_net(net, images, labels, float(config["lr"]), draws)
        metrics = MetricRecord({"train-loss": loss, "num-examples": len(labels)})
        return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)

    return app


app = make_app(quantize_mod())
