"""What a server needs for r clients per round: CPU and bytes per payload, and what one SuperLink takes.

    python benchmarks/flower_sizing.py --server     CPU per payload, both quantizers, both directions
    python benchmarks/flower_sizing.py --link       100 light-weight nodes on loopback: messages and CPU of a SuperLink
    python benchmarks/flower_sizing.py --table      write the tables of docs/sizing.md from the results

Times are CPU seconds of the process that works, all its threads together, the least of some repeats: they hold on a
machine that does other things as well. A light-weight node is a thread that speaks Flower's own protocol and answers
with a payload, without the process that a SuperNode starts for each message.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from flwr.app import Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

import fedpaq
from fedpaq import codec
from fedpaq.flower import protocol
from fedpaq.flower.layout import Layout, as_record
from fedpaq.flower.mean import RoundMean
from fedpaq.flower.replies import Rules
from fedpaq.flower.trial.loopback import Loopback
from measurement import RESULTS, write

HERE = Path(__file__).resolve().parent
DIMENSIONS = (92_027, 11_000_000)
UPLOADS = ("low-precision:1", "rotated:0.5", "none")
DOWNLOADS = ("rotated:1", "none")
NODES, ROUNDS = 100, 3
CLIENTS = (100, 1_000, 10_000, 100_000, 1_000_000)
WIRE_BYTES = 11_400  # what Flower adds to an upload: benchmarks/flower.py --wire, p = 92,027
DOCUMENT = HERE.parent / "docs" / "sizing.md"


def cpu_seconds(work: Callable[[], Any], repeats: int) -> float:
    """Return the least CPU time of some calls, after one that warms up."""
    work()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def measure_server(dimension: int) -> dict[str, Any]:
    """Return the CPU and the bytes of one payload up (check, decode, add) and of one model down (quantize, encode)."""
    layout = Layout.of(as_record({"w": np.zeros(dimension, np.float32)}))
    update = np.random.default_rng(0).normal(size=dimension).astype(np.float32)
    key, repeats = fedpaq.Key(seed=0), 9 if dimension < 1_000_000 else 3
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # as in an app's process
    found: dict[str, Any] = {"up": {}, "down": {}}
    for text in UPLOADS:
        payload = codec.encode(fedpaq.quantizers.parse(text).quantize(update, key=key))
        content = RecordDict(protocol.upload_records(payload, "arrays", exact=b""))
        reply, rules, mean = Message(content, 1, "train"), Rules(layout), RoundMean(layout)
        seconds = cpu_seconds(lambda: mean.add(rules.read(0, reply)), repeats)  # noqa: B023
        found["up"][text] = {"bytes": len(payload), "cpu_seconds": seconds}
    for text in DOWNLOADS:
        quantizer = fedpaq.quantizers.parse(text)
        make = lambda: codec.encode(quantizer.quantize(update, key=key))  # noqa: B023
        found["down"][text] = {"bytes": len(make()), "cpu_seconds": cpu_seconds(make, repeats)}
    return found


class LightNode(threading.Thread):
    """A node of Flower's fleet as a thread: it says who it is, and answers each question with one payload."""

    def __init__(self, address: str, number: int, payload: bytes, ended: threading.Event) -> None:
        super().__init__(daemon=True)
        self._address, self._number, self._payload, self._ended = address, number, payload, ended
        self.answered, self.failed = 0, 0

    def run(self) -> None:
        """Poll once per second until the end."""
        from flwr.supernode.fleet_http_connection import http_request_response

        with http_request_response(self._address, insecure=True) as connection:
            _, receive, send, _, _, pull, push, confirm = (self._retried(call) for call in connection)
            while not self._ended.wait(1.0):
                received = receive()
                if received is not None:
                    self._answer(*received, send, pull, push, confirm)

    def _retried(self, call: Any) -> Callable[..., Any]:
        """Return a call that is made again where the SuperLink fails under its load, as a SuperNode does."""

        def retried(*values: Any, **named: Any) -> Any:
            for pause in (0.2, 0.5, 1.0, 2.0, 5.0):
                try:
                    return call(*values, **named)
                except httpx.HTTPError:
                    self.failed += 1
                    time.sleep(pause)
            return call(*values, **named)

        return retried

    def _answer(self, message: Any, tree: Any, send: Any, pull: Any, push: Any, confirm: Any) -> None:
        from flwr.supercore.inflatable import inflatable_object as objects
        from flwr.supercore.inflatable.inflatable_utils import pull_objects

        run = message.metadata.run_id
        ids = [each.object_id for each in objects.iterate_object_tree(tree)]
        pull_objects(ids, partial(pull, run), max_concurrent_pulls=1)  # the model, though nobody trains on it
        confirm(run, message.metadata.message_id)
        content = RecordDict({protocol.RECORD: protocol.answer(client=self._number)})
        if message.metadata.group_id:  # a round
            records = protocol.upload_records(self._payload, "arrays", exact=b"")
            content = RecordDict({"metrics": MetricRecord({"num-examples": 1}), **records})
        reply = Message(content, reply_to=message)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        wanted, session = send(reply, objects.get_object_tree(reply), 0.0)
        parts = objects.get_all_nested_objects(reply)
        for object_id in wanted:
            push(run, session, object_id, parts[object_id].deflate())
        self.answered += 1


def measure_link() -> dict[str, Any]:
    """Return the messages and the CPU of a SuperLink with ``NODES`` light-weight nodes."""
    dimension = DIMENSIONS[0]
    update = np.random.default_rng(0).normal(size=dimension).astype(np.float32)
    payload = codec.encode(fedpaq.LowPrecision(levels=1).quantize(update, key=fedpaq.Key(seed=0)))
    paths = [str(Path(fedpaq.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}
    ended = threading.Event()
    with tempfile.TemporaryDirectory() as folder, Loopback(folder, num_supernodes=0, environment=environment) as link:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        nodes = [LightNode(f"127.0.0.1:{link.port}", number, payload, ended) for number in range(NODES)]
        for node in nodes:
            node.start()
        settings = {"dimension": dimension, "num_clients": NODES, "num_rounds": 1 + ROUNDS, "folder": folder}
        run = link.start_run(HERE / "flower_wire_app", **settings)
        process = link._processes["superlink"]
        first = _when(Path(folder) / "1.json", process, nodes, run)
        last = _when(Path(folder) / f"{1 + ROUNDS}.json", process, nodes, run)
        ended.set()
        run.wait(60)
    seconds, cpu, answered = (after - before for before, after in zip(first, last, strict=True))
    return {
        "nodes": NODES,
        "exchanges": answered,
        "failed_calls": sum(node.failed for node in nodes),
        "exchanges_per_second": answered / seconds,
        "superlink_cpu_seconds_per_exchange": cpu / answered,
        "model_bytes": 4 * dimension,
    }


def _when(marker: Path, link: Any, nodes: list[LightNode], run: Any) -> tuple[float, float, int]:
    """Return time, CPU of the SuperLink and answers so far, when a round's marker appears."""
    while not marker.exists():
        if run.poll() is not None and not marker.exists():
            raise RuntimeError(f"the run ended before {marker.name}")
        time.sleep(0.05)
    used = link.cpu_times()
    return time.monotonic(), used.user + used.system, sum(node.answered for node in nodes)


def write_tables(results: dict[str, Any]) -> None:
    """Put the tables into the documentation, between their marks."""
    costs = ["| parameters | direction | as | bytes | CPU of the server |", "| --- | --- | --- | --- | --- |"]
    for dimension, found in results["server"].items():
        for direction, kinds in found.items():
            per = "per client" if direction == "up" else "per round"
            for text, one in kinds.items():
                name = "float32" if text == "none" else f"`{text}`"
                costs.append(
                    f"| {int(dimension):,} | {direction} | {name} | {one['bytes']:,} | "
                    f"{1e3 * one['cpu_seconds']:,.2f} ms {per} |"
                )
    _put("costs", costs)
    link = results.get("link", {}).get("superlink_cpu_seconds_per_exchange")
    for dimension, found in results["server"].items():
        rows = [
            "| clients per round | strategy, CPU | up | down, float32 | down, `rotated:1` | SuperLink, CPU |",
            "| --- | --- | --- | --- | --- | --- |",
        ]
        up = found["up"]["rotated:0.5"]
        for clients in CLIENTS:
            down = [clients * found["down"][text]["bytes"] for text in ("none", "rotated:1")]
            cells = [duration(clients * up["cpu_seconds"]), size(clients * (up["bytes"] + WIRE_BYTES))]
            cells += [*map(size, down), "not measured" if link is None else duration(clients * link)]
            rows.append(f"| {clients:,} | " + " | ".join(cells) + " |")
        _put(f"sizes {dimension}", rows)


def _put(name: str, rows: list[str]) -> None:
    first, last = f"<!-- table: {name} -->", f"<!-- end of {name} -->"
    before, _, rest = DOCUMENT.read_text().partition(first)
    _, _, after = rest.partition(last)
    DOCUMENT.write_text(before + first + "\n" + "\n".join(rows) + "\n" + last + after)


def duration(seconds: float) -> str:
    """Return a time for people."""
    for unit, name in ((3600, "h"), (60, "min"), (1, "s")):
        if seconds >= unit:
            return f"{seconds / unit:,.1f} {name}"
    return f"{1e3 * seconds:,.0f} ms"


def size(count: float) -> str:
    """Return bytes for people."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= unit:
            return f"{count / unit:,.1f} {name}"
    return f"{count:.0f} B"


def main() -> None:
    """Measure what was asked for and merge it into the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for part in ("--server", "--link", "--table"):
        parser.add_argument(part, action="store_true")
    asked = parser.parse_args()
    file = RESULTS / "flower_sizing.json"
    results = json.loads(file.read_text()) if file.exists() else {}
    everything = not (asked.server or asked.link or asked.table)
    if asked.server or everything:
        results["server"] = {str(dimension): measure_server(dimension) for dimension in DIMENSIONS}
        print(json.dumps(results["server"], indent=1), flush=True)
    if asked.link or everything:
        results["link"] = measure_link()
        print(json.dumps(results["link"], indent=1))
    if asked.table:
        write_tables(results)
    else:
        write("flower_sizing", results)


if __name__ == "__main__":
    main()
