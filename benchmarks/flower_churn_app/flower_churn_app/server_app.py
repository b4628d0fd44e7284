"""A server that keeps the model of every round, and ends when it is told to."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp import ServerApp

from fedpaq.flower import FedPAQ

app = ServerApp()
DIMENSION = 20_000


class ToldToEndError(Exception):
    """There is a file named stop."""


@app.main()
def main(grid, context):
    """Run until told to end; write models/<round>.npy after each round and history.json at the end."""
    settings = context.run_config
    folder = Path(settings["folder"])
    strategy = FedPAQ(
        clients_per_round=settings["clients-per-round"],
        num_clients=settings["num-clients"],
        deadline=settings["deadline"],
        patience=20.0,
        max_failed_rounds=1000,
        fraction_evaluate=0.0,
        checkpoint=folder / "state",
        log=folder / "rounds.jsonl",
    )

    def keep(server_round, arrays):
        np.save(folder / "models" / f"{server_round}.npy", arrays["params"].numpy())
        if (folder / "stop").exists():
            raise ToldToEndError

    start = ArrayRecord({"params": Array(np.zeros(DIMENSION, np.float32))})
    try:
        strategy.start(grid, start, num_rounds=100_000, evaluate_fn=keep)
    except ToldToEndError:
        history = [asdict(record) for record in strategy.history]
        (folder / "history.part").write_text(json.dumps(history))
        (folder / "history.part").rename(folder / "history.json")
