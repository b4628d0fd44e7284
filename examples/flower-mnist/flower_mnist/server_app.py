"""The server: FedPAQ instead of FedAvg; everything else is a plain Flower ServerApp."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from fedpaq import CostModel
from fedpaq.flower import FedPAQ
from flower_mnist.task import load_problem

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, evaluate each round on all samples, keep the result."""
    settings = context.run_config
    problem = load_problem(int(settings["num-clients"]), int(settings["seed"]))

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        found = problem.evaluate(arrays["params"].numpy())
        return MetricRecord({"loss": found.loss, "accuracy": found.accuracy or 0.0})

    strategy = FedPAQ(
        clients_per_round=int(settings["clients-per-round"]),
        num_clients=int(settings["num-clients"]),
        seed=int(settings["seed"]),
        quantizer=str(settings["quantizer"]),
        downlink=str(settings["downlink"]),
        deadline=float(settings["deadline"]),
        checkpoint=str(settings["checkpoint"]) or None,
        save=str(settings["save"]) or None,
        log=str(settings["log"]) or (),
        cost_model=CostModel.from_ratio(100),
        gradients_per_client=int(settings["local-steps"]) * int(settings["batch-size"]),
        fraction_evaluate=0.0,
    )
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord({"params": Array(problem.initial_params)}),
        num_rounds=int(settings["num-rounds"]),
        evaluate_fn=evaluate,
    )
    final = result.evaluate_metrics_serverapp[int(settings["num-rounds"])]
    print(f"loss={final['loss']:.4f} accuracy={final['accuracy']:.4f}")
    if settings["result"]:
        history = json.dumps([asdict(record) for record in strategy.history])
        np.savez(str(settings["result"]), params=result.arrays["params"].numpy(), history=history)
