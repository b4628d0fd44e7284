"""What an upload costs in a real deployment: bytes on the wire, and the server's time.

    python benchmarks/flower.py             both, results to benchmarks/results/flower.json
    python benchmarks/flower.py --wire      bytes only (a SuperLink and SuperNodes on loopback)
    python benchmarks/flower.py --server    server time only
    python benchmarks/flower.py --table     write the table in docs/flower.md from the results

Bytes on the wire are counted by a proxy between the SuperNodes and the SuperLink: everything that
crosses the socket, headers and polling included. One client-round is the difference between a run
of several rounds and a run of one, divided by rounds and clients, so that start-up drops out; what
polling costs while nothing runs is measured first and taken off.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

import fedpaq
from byte_counter import ByteCounter
from fedpaq import codec
from fedpaq.flower.layout import Layout, as_record
from fedpaq.flower.loopback import Loopback
from fedpaq.flower.mean import RoundMean
from fedpaq.flower.protocol import PAYLOAD, RECORD, answer, bytes_array
from fedpaq.flower.replies import Rules

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "flower.json"
DIMENSIONS = (92_027, 11_000_000)
UPLOADS = {"s=1": 1, "s=10": 10, "float32": None}
CLIENTS = 2
DOCUMENT = HERE.parent / "docs" / "flower.md"
MARKS = "<!-- table: benchmarks/flower.py --table -->", "<!-- end of table -->"


def measure_wire(dimension: int, name: str, rounds: int) -> dict[str, float]:
    """Return payload and wire bytes of one client-round, up and down, without idle polling."""
    paths = [str(Path(fedpaq.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        deployment = Loopback(folder, num_supernodes=CLIENTS, environment=environment)
        with ByteCounter(deployment.port) as counter:
            deployment.fleet_port = counter.port
            with deployment:
                idle = idle_rates(counter)
                few = run_once(deployment, counter, dimension, name, 1)
                many = run_once(deployment, counter, dimension, name, 1 + rounds)
    seconds, up, down, payload = (
        (more - less) / (CLIENTS * rounds) for more, less in zip(many, few, strict=True)
    )
    return {
        "payload_bytes": payload,
        "wire_bytes_up": up - idle[0] * seconds,
        "wire_bytes_down": down - idle[1] * seconds,
        "idle_bytes_up_per_second_and_client": idle[0] / CLIENTS,
    }


def idle_rates(counter: ByteCounter, seconds: float = 24.0) -> tuple[float, float]:
    """Return the bytes a second that polling costs while nothing runs, up and down."""
    time.sleep(10)  # until the SuperNodes have settled
    up, down = counter.up, counter.down
    time.sleep(seconds)
    return (counter.up - up) / seconds, (counter.down - down) / seconds


def run_once(
    deployment: Loopback, counter: ByteCounter, dimension: int, name: str, num_rounds: int
) -> tuple[float, float, float, float]:
    """Run the app; return seconds, bytes up, bytes down and payload bytes."""
    result = deployment.folder / f"{num_rounds}.json"
    up, down, start = counter.up, counter.down, time.monotonic()
    log = deployment.run(
        HERE / "flower_wire_app",
        dimension=dimension,
        levels=UPLOADS[name] or 0,
        num_rounds=num_rounds,
        result=str(result),
        timeout=1200,
    )
    if not result.exists():
        raise RuntimeError(log)
    payload = sum(json.loads(result.read_text()))
    return time.monotonic() - start, counter.up - up, counter.down - down, payload


def write_table(results: dict[str, Any]) -> None:
    """Put the table into the documentation, between its two marks."""
    rows = [
        "| parameters | upload | payload | on the wire, up | on the wire, down | server time |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for dimension, uploads in results.items():
        for name, found in uploads.items():
            wire, server = found["wire"], found["server"]
            sizes = [wire["payload_bytes"], wire["wire_bytes_up"], wire["wire_bytes_down"]]
            cells = " | ".join(f"{size:,.0f} B" for size in sizes)
            rows.append(f"| {int(dimension):,} | {name} | {cells} | {server['milliseconds']:.2f} ms |")
    text = DOCUMENT.read_text()
    before, _, rest = text.partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    DOCUMENT.write_text(before + MARKS[0] + "\n" + "\n".join(rows) + "\n" + MARKS[1] + after)


def measure_server(dimension: int, levels: int | None, repeats: int = 15) -> dict[str, float]:
    """Return the milliseconds the strategy spends on one client's reply, and the payload's bytes."""
    rng = np.random.default_rng(0)
    layout = Layout.of(as_record({"w": np.zeros(dimension, np.float32)}))
    update = rng.normal(size=dimension).astype(np.float32)
    quantizer = fedpaq.Identity() if levels is None else fedpaq.LowPrecision(levels)
    message = quantizer.quantize(update, key=fedpaq.Key(seed=0))
    payload = codec.encode(message)
    content = RecordDict(
        {
            "arrays": ArrayRecord({PAYLOAD: bytes_array(PAYLOAD, payload)}),
            "metrics": MetricRecord({"num-examples": 1}),
            RECORD: answer(exact=b""),
        }
    )
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # as in an app's process
    reply = Message(content, 1, "train")
    rules, mean = Rules(layout), RoundMean(layout)
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        mean.add(rules.read(0, reply))
        times.append(1e3 * (time.perf_counter() - start))
    moved, _ = mean.apply(np.zeros(dimension, np.float32))
    total = np.zeros(dimension)
    for _ in range(repeats):
        message.add_to(total)
    np.testing.assert_array_equal(moved, (total / repeats).astype(np.float32))  # equal first, then fast
    return {"payload_bytes": len(payload), "milliseconds": statistics.median(times[1:])}


def main() -> None:
    """Measure what was asked for and merge it into the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wire", action="store_true")
    parser.add_argument("--server", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if arguments.table:
        write_table(results)
        return
    both = not (arguments.wire or arguments.server)
    for dimension in DIMENSIONS:
        for name, levels in UPLOADS.items():
            entry = results.setdefault(str(dimension), {}).setdefault(name, {})
            if arguments.server or both:
                entry |= {"server": measure_server(dimension, levels)}
            if arguments.wire or both:
                entry |= {"wire": measure_wire(dimension, name, arguments.rounds)}
            print(f"p={dimension:,} {name}: {json.dumps(entry)}", flush=True)
            RESULTS.parent.mkdir(exist_ok=True)
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    worst = results[str(DIMENSIONS[-1])]["s=1"]["server"]["milliseconds"]
    if worst >= 10:
        raise SystemExit(f"{worst:.1f} ms a client at p=11 million, s=1; at most 10 are allowed")


if __name__ == "__main__":
    main()
