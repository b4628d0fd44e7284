"""A server that writes down what each round sent when its training ends, and when its evaluation does."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp import ServerApp

from fedpaq.flower import FedPAQ

app = ServerApp()


@app.main()
def main(grid, context):
    """Run; the files <round>.train and <round>.json in the folder mark the end of training and of the round."""
    settings = context.run_config
    folder = Path(settings["folder"])

    class Marking(FedPAQ):
        def aggregate_train(self, server_round, replies):
            result = super().aggregate_train(server_round, replies)
            mark(server_round, ending="train")
            return result

    strategy = Marking(
        clients_per_round=settings["num-clients"],
        num_clients=settings["num-connected"] or settings["num-clients"],
        patience=1e6,
        fraction_evaluate=settings["fraction-evaluate"],
        downlink=settings["downlink"],
    )

    def mark(server_round, arrays=None, ending="json"):
        if server_round:
            last = strategy.history[-1]
            row = {"payload_bytes": last.metrics["fedpaq-payload-bytes"], "asked": last.asked}
            row["download_bytes"] = last.metrics["fedpaq-download-bytes"]
            (folder / "part").write_text(json.dumps(row))
            (folder / "part").rename(folder / f"{server_round}.{ending}")
            time.sleep(settings["pause"])  # for the counter to be read

    drawn = np.random.default_rng(0).standard_normal(settings["dimension"], np.float32)
    start = ArrayRecord({"params": Array(drawn)})
    strategy.start(grid, start, num_rounds=settings["num-rounds"], evaluate_fn=mark)
