"""The server: any strategy, with a learning rate that falls by a tenth per round, kept in the train config."""

from __future__ import annotations

import json
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import ServerApp

from fedpaq.flower import FedPAQ
from flower_cnn_app.task import accuracy, make_net

app = ServerApp()


def with_schedule(strategy):
    """Return a strategy's class with Flower's way to change the learning rate from round to round."""

    class Scheduled(strategy):
        def configure_train(self, server_round, arrays, config, grid):
            if server_round > 1:
                config["lr"] *= 0.9
            return super().configure_train(server_round, arrays, config, grid)

    return Scheduled


def run(strategy, grid, settings):
    """Train; return Flower's result and the accuracy on the test images."""
    net = make_net(settings["seed"])

    def evaluate(server_round, arrays):
        if server_round < settings["num-rounds"]:
            return None
        net.load_state_dict(arrays.to_torch_state_dict())
        return MetricRecord({"accuracy": accuracy(net)})

    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(net.state_dict()),
        num_rounds=settings["num-rounds"],
        train_config=ConfigRecord({"lr": settings["lr"]}),
        evaluate_fn=evaluate,
    )
    return result, result.evaluate_metrics_serverapp[settings["num-rounds"]]["accuracy"]


@app.main()
def main(grid, context):
    """Run FedPAQ with its default settings, and write down what it cost and reached."""
    settings = context.run_config
    strategy = with_schedule(FedPAQ)(
        clients_per_round=settings["num-clients"], seed=settings["seed"], fraction_evaluate=0.0
    )
    _, reached = run(strategy, grid, settings)
    sent = [[record.metrics[f"fedpaq-{kind}-bytes"] for record in strategy.history] for kind in ("payload", "exact")]
    Path(settings["result"]).write_text(json.dumps({"accuracy": reached, "payload": sent[0], "exact": sent[1]}))
