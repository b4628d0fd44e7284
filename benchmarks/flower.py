"""What an upload costs in a real deployment: bytes on the wire, and the server's time.

    python benchmarks/flower.py             both, results to benchmarks/results/flower.json
    python benchmarks/flower.py --wire      bytes only (a SuperLink and SuperNodes on loopback)
    python benchmarks/flower.py --server    server time only
    python benchmarks/flower.py --table     write the table in docs/flower.md from the results

Bytes on the wire are counted by a proxy between the SuperNodes and the SuperLink: everything that
crosses the socket, headers included. Counting starts when round 1 ends, so start-up drops out; what
polling costs while nothing runs is measured first and taken off.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

import fedpaq
from byte_counter import ByteCounter
from fedpaq import codec
from fedpaq.flower.layout import Layout, as_record
from fedpaq.flower.mean import RoundMean
from fedpaq.flower.protocol import upload_records
from fedpaq.flower.replies import Rules
from fedpaq.flower.trial.loopback import Loopback

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "flower.json"
DIMENSIONS = (92_027, 11_000_000)
UPLOADS = {"s=1": 1, "s=10": 10, "float32": None}
CLIENTS = 2
DOCUMENT = HERE.parent / "docs" / "flower.md"
MARKS = "<!-- table: benchmarks/flower.py --table -->", "<!-- end of table -->"


class WireBench:
    """A deployment with a byte counter between SuperNodes and SuperLink."""

    def __enter__(self) -> WireBench:
        self._stack = contextlib.ExitStack()
        paths = [str(Path(fedpaq.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        environment = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}
        folder = self._stack.enter_context(tempfile.TemporaryDirectory())
        self._deployment = Loopback(folder, num_supernodes=CLIENTS, environment=environment)
        self._counter = self._stack.enter_context(ByteCounter(self._deployment.port))
        self._deployment.fleet_port = self._counter.port
        self._stack.enter_context(self._deployment)
        time.sleep(20)  # until the SuperNodes have settled
        before, seconds = self._read(), 30.0
        time.sleep(seconds)
        self._idle = (self._read() - before) / seconds  # bytes per second while nothing runs: (up, down)
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def measure(self, dimension: int, levels: int | None, rounds: int) -> dict[str, float]:
        """Return payload and wire bytes of one client-round, up and down, without idle polling."""
        folder = Path(tempfile.mkdtemp(dir=self._deployment.folder))
        run = self._deployment.start_run(
            HERE / "flower_wire_app", dimension=dimension, levels=levels or 0, num_rounds=1 + rounds, folder=str(folder)
        )
        first = self._when(run, folder / "1.json")
        last = self._when(run, folder / f"{1 + rounds}.json")
        run.wait()
        seconds, wire = last[0] - first[0], last[1] - first[1]
        up, down = (wire - seconds * self._idle) / (CLIENTS * rounds)
        payload = sum(json.loads((folder / f"{at}.json").read_text())["payload_bytes"] for at in range(2, 2 + rounds))
        return {
            "payload_bytes": payload / (CLIENTS * rounds),
            "wire_bytes_up": up,
            "wire_bytes_down": down,
            "idle_bytes_up_per_second": self._idle[0] / CLIENTS,
            "idle_bytes_down_per_second": self._idle[1] / CLIENTS,
        }

    def _when(self, run: Any, marker: Path) -> tuple[float, Any]:
        """Return the time and the bytes so far when a round's marker appears."""
        while not marker.exists():
            if run.poll() is not None and not marker.exists():
                raise RuntimeError(f"the run ended before {marker.name}")
            time.sleep(0.02)
        return time.monotonic(), self._read()

    def _read(self) -> Any:
        return np.array([self._counter.up, self._counter.down], np.float64)


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
    records = upload_records(payload, "arrays", exact=b"")
    content = RecordDict({"metrics": MetricRecord({"num-examples": 1}), **records})
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # as in an app's process
    reply = Message(content, 1, "train")
    rules, mean = Rules(layout), RoundMean(layout)
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        mean.add(rules.read(0, reply))
        times.append(1e3 * (time.perf_counter() - start))
    moved, _ = mean.apply(lambda value: value.astype(np.float32))
    total = np.zeros(dimension)
    for _ in range(repeats):
        message.add_to(total)
    np.testing.assert_array_equal(moved, (total / repeats).astype(np.float32))  # equal first, then fast
    return {"payload_bytes": len(payload), "milliseconds": statistics.median(times[1:])}


def keep(results: dict[str, Any], dimension: int, name: str, kind: str, found: dict[str, float]) -> None:
    """Show one measurement and write it down."""
    print(f"p={dimension:,} {name} {kind}: {json.dumps(found)}", flush=True)
    results.setdefault(str(dimension), {}).setdefault(name, {})[kind] = found
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


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
    jobs = [(p, name, levels) for p in DIMENSIONS for name, levels in UPLOADS.items()]
    if arguments.server or both:
        for dimension, name, levels in jobs:
            keep(results, dimension, name, "server", measure_server(dimension, levels))
    if arguments.wire or both:
        with WireBench() as bench:
            for dimension, name, levels in jobs:
                keep(results, dimension, name, "wire", bench.measure(dimension, levels, arguments.rounds))
    worst = results[str(DIMENSIONS[-1])]["s=1"]["server"]["milliseconds"]
    if worst >= 10:
        raise SystemExit(f"{worst:.1f} ms per client at p=11 million, s=1; at most 10 are allowed")


if __name__ == "__main__":
    main()
