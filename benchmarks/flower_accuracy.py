"""What quantizing costs an app as people bring it: accuracy against bytes, beside Flower's own FedAvg.

    python benchmarks/flower_accuracy.py             every quantizer, three seeds, in this process
    python benchmarks/flower_accuracy.py --deploy    the default through a real deployment of six SuperNodes, seed 0
    python benchmarks/flower_accuracy.py --table     write the table in docs/flower.md from the results

The app (``flower_cnn_app/``) trains MNIST with BatchNorm, Dropout, Adam and a learning-rate schedule on six clients
with uneven shares (Dirichlet, 0.5), twelve rounds of one epoch. The clients are real ClientApps behind the grid of the
tests, and messages are serialized on the way; the deployment ends with the same payloads. Bytes are those of an upload:
payload and exact arrays. Needs MNIST in the folder that FEDPAQ_DATA names.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from statistics import mean
from typing import Any

import torch

import fedpaq
from fedpaq.flower import FedPAQ, quantize_mod
from fedpaq.flower.mod import DEFAULT
from measurement import RESULTS, machine, write

HERE = Path(__file__).resolve().parent
APP = HERE / "flower_cnn_app"
sys.path[:0] = [str(APP), str(HERE.parent / "tests" / "flower")]

SEEDS = (0, 1, 2)
FEDAVG, UNIFORM = "FedAvg", "float32, uniform mean"
QUANTIZERS = {
    UNIFORM: "none",
    **{text: text for text in ("rotated:1", "rotated:0.5", "rotated:0.25", "rotated:0.1", "rotated:0.03")},
    "low-precision:16, buckets of 1024": fedpaq.LowPrecision(levels=16, bucket_size=1024),
    "low-precision:1, buckets of 64": fedpaq.LowPrecision(levels=1, bucket_size=64),
    "low-precision:1": "low-precision:1",
}
SETTINGS = {"num-rounds": 12, "num-clients": 6, "lr": 0.004}
DOCUMENT = HERE.parent / "docs" / "flower.md"
MARKS = "<!-- table: benchmarks/flower_accuracy.py --table -->", "<!-- end of accuracy -->"


def measure(name: str, seed: int) -> dict[str, float]:
    """Return accuracy and mean bytes of one upload."""
    from flower_cnn_app.client_app import make_app
    from flower_cnn_app.server_app import run, with_schedule
    from flwr.serverapp.strategy import FedAvg
    from in_process_grid import InProcessGrid

    settings = SETTINGS | {"seed": seed}
    if name == FEDAVG:
        grid = InProcessGrid(make_app(), 6, run_config=settings)
        result, reached = run(with_schedule(FedAvg)(fraction_evaluate=0.0), grid, settings)
        sent = sum(array.numpy().nbytes for array in result.arrays.values())
        return {"accuracy": reached, "upload_bytes": float(sent)}
    grid = InProcessGrid(make_app(quantize_mod(quantizer=QUANTIZERS[name])), 6, run_config=settings)
    strategy = with_schedule(FedPAQ)(clients_per_round=6, seed=seed, fraction_evaluate=0.0)
    _, reached = run(strategy, grid, settings)
    kinds = ("fedpaq-payload-bytes", "fedpaq-exact-bytes")
    sent = sum(record.metrics[kind] for record in strategy.history for kind in kinds)
    return {"accuracy": reached, "upload_bytes": sent / (6 * SETTINGS["num-rounds"])}


def deploy() -> dict[str, Any]:
    """Run the app with the default quantizer through SuperLink and SuperNodes; return what it reached and sent."""
    from fedpaq.flower.trial.loopback import Loopback

    paths = [str(Path(fedpaq.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        with Loopback(folder, num_supernodes=6, environment=environment) as deployment:
            deployment.run(APP, result=str(result), timeout=1800)
        return dict(json.loads(result.read_text()))


def write_table(results: dict[str, Any]) -> None:
    """Put the table into the documentation, between its two marks."""
    rows = ["| upload | bytes of an upload | times smaller | accuracy, mean of three seeds | against FedAvg |"]
    rows += ["| --- | --- | --- | --- | --- |"]
    whole, base = results[FEDAVG][0]["upload_bytes"], mean(one["accuracy"] for one in results[FEDAVG])
    for name, found in results.items():
        size, reached = mean(one["upload_bytes"] for one in found), mean(one["accuracy"] for one in found)
        label = f"**`{name}`, the default**" if name == DEFAULT else f"`{name}`" if ":" in name else name
        against = "" if name == FEDAVG else f"{100 * (reached - base):+.1f} points"
        rows.append(f"| {label} | {size:,.0f} | {whole / size:,.1f} | {reached:.1%} | {against} |")
    text = DOCUMENT.read_text()
    before, _, rest = text.partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    DOCUMENT.write_text(before + MARKS[0] + "\n" + "\n".join(rows) + "\n" + MARKS[1] + after)


def main() -> None:
    """Measure what was asked for, and say whether the default keeps its promise."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--deploy", action="store_true")
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    if not (Path(os.environ.get("FEDPAQ_DATA", "")) / "mnist.npz").is_file():
        print("FEDPAQ_DATA names no folder with mnist.npz")
        raise SystemExit(77)
    file = RESULTS / "flower_accuracy.json"
    kept = json.loads(file.read_text()) if file.exists() else {"results": {}}
    torch.set_num_threads(1)
    if arguments.deploy:
        kept["deployment"] = deploy()
        print(json.dumps(kept["deployment"]))
    elif not arguments.table:
        for name in (FEDAVG, *QUANTIZERS):
            kept["results"][name] = [measure(name, seed) for seed in SEEDS]
            print(name, json.dumps(kept["results"][name]), flush=True)
            write("flower_accuracy", kept)
    write("flower_accuracy", kept | {"machine": machine()}) if not arguments.table else write_table(kept["results"])
    found, fedavg = kept["results"][DEFAULT], kept["results"][FEDAVG]
    loss = 100 * (mean(one["accuracy"] for one in fedavg) - mean(one["accuracy"] for one in found))
    smaller = fedavg[0]["upload_bytes"] / mean(one["upload_bytes"] for one in found)
    print(f"{DEFAULT}: {loss:+.2f} points below FedAvg, {smaller:.1f} times fewer bytes")
    if loss > 1 or smaller < 50:
        raise SystemExit("the default costs more than a point, or saves less than 50 times")


if __name__ == "__main__":
    main()
