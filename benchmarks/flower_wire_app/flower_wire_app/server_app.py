"""A server that writes down the payload bytes of each round when it ends."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp import ServerApp

from fedpaq.flower import FedPAQ

app = ServerApp()


@app.main()
def main(grid, context):
    """Run; the file <folder>/<round>.json marks a round's end."""
    settings = context.run_config
    folder = Path(settings["folder"])
    strategy = FedPAQ(clients_per_round=settings["num-clients"], patience=1e6, fraction_evaluate=0.0)

    def mark(server_round, arrays):
        if server_round:
            payload_bytes = strategy.history[-1].metrics["fedpaq-payload-bytes"]
            (folder / "part").write_text(str(payload_bytes))
            (folder / "part").rename(folder / f"{server_round}.json")

    start = ArrayRecord({"params": Array(np.zeros(settings["dimension"], np.float32))})
    strategy.start(grid, start, num_rounds=settings["num-rounds"], evaluate_fn=mark)
