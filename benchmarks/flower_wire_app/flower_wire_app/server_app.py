"""A server that writes down the payload bytes of each round."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp import ServerApp

from fedpaq.flower import FedPAQ

app = ServerApp()


@app.main()
def main(grid, context):
    """Run and write the bytes."""
    settings = context.run_config
    strategy = FedPAQ(clients_per_round=settings["num-clients"], fraction_evaluate=0.0)
    start = ArrayRecord({"params": Array(np.zeros(settings["dimension"], np.float32))})
    strategy.start(grid, start, num_rounds=settings["num-rounds"])
    payload = [record.metrics["fedpaq-payload-bytes"] for record in strategy.history]
    Path(settings["result"]).write_text(json.dumps(payload))
