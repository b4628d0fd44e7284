"""A server that is killed in one phase of a round, and continued: run by test_loop_killed.py in a process of its own.

python killed_server.py FOLDER PHASE ...       writes FOLDER/PHASE.json; the phase "none" is never killed
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import numpy as np
from flwr.app import ConfigRecord, MetricRecord

from fedpaq.flower import FedPAQ, exchange, quantize_mod, roster
from fedpaq.storage import atomic_file
from flower.deployments import warm_kernels
from flower.flower_apps import drifting_app, record
from flower.in_process_grid import InProcessGrid

KILLED_IN, ROUNDS = 3, 5


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Scheduled(FedPAQ):
    """A learning rate that halves in every second round, and a server that dies where it is told to."""

    phase = "none"

    def configure_train(self, server_round, arrays, config, grid):
        if server_round % 2 == 0:
            config["lr"] /= 2
        self._die_in("configure", server_round)
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        found = super().aggregate_train(server_round, replies)
        self._die_in("aggregate", server_round)
        return found

    def aggregate_evaluate(self, server_round, replies):
        self._die_in("evaluate", server_round)
        return super().aggregate_evaluate(server_round, replies)

    def _die_in(self, phase, server_round):
        if self.phase == phase and server_round == KILLED_IN:
            die()


def rate_app():
    """Clients that move by the learning rate they are sent, and say which it was."""

    def by_rate(message, context, call_next):
        rate = message.content["config"]["lr"]
        reply = call_next(message, context)
        if message.metadata.message_type == "train":
            moved = {name: _scaled(array.numpy(), 1 + rate) for name, array in reply.content["arrays"].items()}
            reply.content["arrays"] = record(**moved)
            reply.content["metrics"]["lr"] = rate
        return reply

    return drifting_app(quantize_mod(levels=1), by_rate)


def _scaled(values, factor):
    return values * values.dtype.type(factor) if values.dtype.kind == "f" else values


def serve(folder: Path, phase: str, name: str) -> None:
    """Run to the end, or to the phase in which the server dies."""
    grid, strategy = (
        InProcessGrid(rate_app(), 4),
        Scheduled(
            clients_per_round=3, num_clients=4, checkpoint=folder / f"{name}.state", log=folder / f"{name}.jsonl"
        ),
    )
    strategy.phase = phase
    if phase == "collect":
        grid.meddle = lambda client, reply: die() if _asked(grid).get("round") == KILLED_IN - 1 else reply
    if phase == "save":
        write, saves = atomic_file.write_new, []

        def torn(partial, chunks):
            write(partial, chunks)
            saves.extend([partial] if ".state." in partial.name else [])
            if len(saves) == KILLED_IN:
                die()

        atomic_file.write_new = torn

    def evaluate(server_round, arrays):
        return MetricRecord({"mean": float(arrays["w"].numpy().mean())})

    model = record(w=np.zeros(60, np.float32), running_mean=np.zeros(2, np.float32), n=np.array(0))
    configs = {"train_config": ConfigRecord({"lr": 0.4}), "evaluate_config": ConfigRecord({"lr": 0.0})}
    result = strategy.start(grid, model, num_rounds=ROUNDS, evaluate_fn=evaluate, **configs)
    rows = [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
    found = {
        "arrays": {key: array.numpy().tolist() for key, array in result.arrays.items()},
        "train": {at: dict(values) for at, values in result.train_metrics_clientapp.items()},
        "clients": {at: dict(values) for at, values in result.evaluate_metrics_clientapp.items()},
        "server": {at: dict(values) for at, values in result.evaluate_metrics_serverapp.items()},
        "rows": [{key: value for key, value in row.items() if key != "seconds"} for row in rows],
    }
    (folder / f"{name}.json").write_text(json.dumps(found))


def _asked(grid):
    return grid.sent[-1].content.config_records.get("fedpaq", {})


def in_a_child(folder: Path, phase: str, name: str) -> int:
    """Serve in a process of its own, and return the signal that ended it, 0 for none."""
    child = os.fork()
    if not child:
        serve(folder, phase, name)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    warm_kernels()  # once, not in every child
    exchange.POLL_SECONDS = roster.POLL_SECONDS = 0.002
    for phase in sys.argv[2:]:
        ends = [in_a_child(Path(sys.argv[1]), phase, phase)] if phase != "none" else []
        ends.append(in_a_child(Path(sys.argv[1]), "none", phase))
        if ends != [-signal.SIGKILL, 0][-len(ends) :]:
            sys.exit(f"{phase}: ended with {ends}")
