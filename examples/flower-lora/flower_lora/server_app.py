"""The server: it holds the adapter, and nothing else is sent to anyone."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from fedpaq.flower import FedPAQ
from flower_lora.task import accuracy, adapter, load_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train the adapter and say how well the network reads negatives before and after."""
    settings = context.run_config
    model = load_model(int(settings["rank"]))

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        model.load_state_dict(arrays.to_torch_state_dict(), strict=False)
        return MetricRecord({"accuracy": accuracy(model)})

    strategy = FedPAQ(
        clients_per_round=int(settings["clients-per-round"]),
        num_clients=int(settings["num-clients"]),
        seed=int(settings["seed"]),
        fraction_evaluate=0.0,
    )
    rounds = int(settings["num-rounds"])
    result = strategy.start(
        grid=grid, initial_arrays=ArrayRecord(adapter(model)), num_rounds=rounds, evaluate_fn=evaluate
    )
    found = result.evaluate_metrics_serverapp
    whole = sum(value.numel() for value in model.parameters())
    sent = sum(value.numel() for value in adapter(model).values())
    print(f"{sent:,} of {whole:,} parameters are trained and travel")
    print(f"accuracy on negatives: {found[0]['accuracy']:.1%} before, {found[rounds]['accuracy']:.1%} after")
