"""What coded downloads save on Flower's wire: 8 SuperNodes on loopback, r = 4, 92,027 parameters, a counting proxy.

    python benchmarks/flower_downloads.py [--rounds 10]

Everything that crosses the sockets is counted, headers included, by the kind of call. What a poll costs while nothing
runs is measured first, and all polls but one per message are taken off. Training and evaluation are told apart by when
they end. A client-round counts once each client has its first model; what the first rounds took stands beside it.
Writes results/flower_downloads.json after each run, so that an interrupted measurement loses one run at most.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import fedpaq
from byte_counter import ByteCounter, added, less
from fedpaq.flower.trial.loopback import Loopback
from measurement import RESULTS, machine

HERE = Path(__file__).resolve().parent
NODES, CLIENTS, DIMENSION, PAUSE = 8, 4, 92_027, 1.0
POLL = "pull-messages"
RUNS = {  # name: (downlink, share that evaluates, rounds)
    "coded, training only": ("rotated:1", 0.0, None),
    "coded, all evaluate": ("rotated:1", 1.0, None),
    "dense, all evaluate": ("dense", 1.0, 4),
}


Counts = dict[str, np.ndarray]  # path -> calls, bytes up, bytes down


def measure(
    deployment: Loopback, counter: ByteCounter, idle: Counts, downlink: str, share: float, rounds: int
) -> list[dict[str, Any]]:
    """Return the calls and wire bytes of each round's training and evaluation, by path, without idle polling."""
    folder = Path(tempfile.mkdtemp(dir=deployment.folder))
    run = deployment.start_run(
        HERE / "flower_wire_app",
        dimension=DIMENSION,
        levels=1,
        downlink=downlink,
        num_rounds=rounds,
        num_clients=CLIENTS,
        num_connected=NODES,
        fraction_evaluate=share,
        pause=PAUSE,
        folder=str(folder),
    )
    before = counter.read()
    rows, known = [], set()
    for round in range(1, rounds + 1):
        row: dict[str, Any] = {}
        for ending, kind in (("train", "training"), ("json", "evaluation")):
            marker = folder / f"{round}.{ending}"
            while not marker.exists():
                if run.poll() is not None:
                    log = "\n".join(path.read_text()[-3000:] for path in sorted(deployment.folder.glob("run-*.log")))
                    raise RuntimeError(f"the run ended before {marker.name}: {log}")
                time.sleep(0.02)
            time.sleep(PAUSE / 2)
            counted = counter.read()
            messages = CLIENTS if kind == "training" else int(share * NODES)
            row[kind] = without_polling(less(counted, before), idle, messages)
            before = counted
        sent = json.loads((folder / f"{round}.json").read_text())
        row |= {"payload_bytes": sent["payload_bytes"], "frames_bytes": sent["download_bytes"]}
        row["new"] = len(set(sent["asked"]) - known)
        known |= set(sent["asked"]) if share == 0 else set(range(NODES))
        rows.append(row)
        print(downlink, share, round, {kind: total(row[kind]) for kind in ("training", "evaluation")}, flush=True)
    run.wait()
    return rows


def without_polling(counts: Counts, idle: Counts, messages: int) -> Counts:
    """Return the counts with one poll per message; what other calls of an idle node cost is known, and taken off."""
    found = dict(counts)
    for path, alone in idle.items():
        if path in found and alone[0]:
            kept = messages if path == POLL else 0
            found[path] = found[path] - (found[path][0] - kept) * alone / alone[0]
    return found


def total(counts: Counts) -> list[int]:
    """Return bytes up and down of all calls."""
    return [round(float(each)) for each in sum(counts.values(), np.zeros(3))[1:]]


def per_message(rows: list[dict[str, Any]], kind: str, count: int) -> dict[str, Any]:
    """Return the bytes of one message and its reply, up and down, and its calls, over rounds in which nobody is new."""
    later = [row[kind] for row in rows[1:] if not row["new"]]
    if not later or not count:
        return {}
    mean = {path: counts / (len(later) * count) for path, counts in added(later).items()}
    calls = {path: np.round(counts, 1).tolist() for path, counts in mean.items() if counts[1] >= 1}
    return {"rounds": len(later), "bytes": total(mean), "calls, up, down": calls}


def main() -> None:
    """Measure all runs in one deployment."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    wanted = parser.parse_args().rounds
    found: dict[str, Any] = {"machine": machine(), "nodes": NODES, "clients_per_round": CLIENTS, "runs": {}}
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(fedpaq.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        environment = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}
        environment["FEDPAQ_CACHE"] = str(Path(folder) / "kept")
        deployment = Loopback(folder, num_supernodes=NODES, environment=environment)
        with ByteCounter(deployment.port) as counter:
            deployment.fleet_port = counter.port
            with deployment:
                time.sleep(25)  # until the SuperNodes have settled
                before = counter.read()
                time.sleep(20)
                idle = less(counter.read(), before)
                for name, (downlink, share, rounds) in RUNS.items():
                    rows = measure(deployment, counter, idle, downlink, share, rounds or wanted)
                    training = per_message(rows, "training", CLIENTS)
                    evaluation = per_message(rows, "evaluation", NODES if share else 0)
                    plain = [{**row, **{kind: total(row[kind]) for kind in ("training", "evaluation")}} for row in rows]
                    found["runs"][name] = {"training": training, "evaluation": evaluation, "rounds": plain}
                    print(name, training, evaluation, sep="\n", flush=True)
                    (RESULTS / "flower_downloads.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
