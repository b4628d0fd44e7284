"""A server that keeps the final model and what happened in each round."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp import ServerApp

from faulty.task import DIMENSION
from fedpaq.flower import FedPAQ

app = ServerApp()


@app.main()
def main(grid, context):
    """Run and write <folder>/<name>.npz."""
    settings = context.run_config
    strategy = FedPAQ(
        clients_per_round=settings["clients-per-round"],
        num_clients=settings["num-clients"],
        seed=settings["seed"],
        deadline=settings["deadline"],
        patience=settings["patience"],
        checkpoint=settings["checkpoint"] or None,
        fraction_evaluate=0.0,
    )
    start = ArrayRecord({"w": Array(np.zeros(DIMENSION, np.float32))})
    result = strategy.start(grid, start, num_rounds=settings["num-rounds"])
    history = json.dumps([asdict(record) for record in strategy.history])
    path = Path(settings["folder"]) / f"{settings['name']}.npz"
    np.savez(path, params=result.arrays["w"].numpy(), history=history)
