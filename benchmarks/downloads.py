"""Coded downloads: loss against bytes both ways, beside float32 both ways; and what snapshots bring with 1,000 clients.

n = 50, r = 25, tau = 2, T = 100, B = 10, as the networks of the paper. Each method has its step size tuned alike: the
one of STEP_SIZES with the lowest mean loss after T over two seeds of their own. Five other seeds are judged, paired
with float32 by seed.

    FEDPAQ_DATA=folder python benchmarks/downloads.py --device cuda     a minute or two; twenty on one core
    python benchmarks/downloads.py --draw                               the picture, from the results
    python benchmarks/downloads.py --coding                             what a round costs the server, 11 million params

Before anything is measured, real clients follow a run and compare every model they get with the server's.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import scipy.stats

import fedpaq
from fedpaq.downlink import parse
from fedpaq.downlink.changes import ChangesBroadcast
from fedpaq.downlink.stream import NOTHING, receive
from measurement import RESULTS, machine

PROBLEMS = {"cifar10-mlp-92k": "CIFAR-10, 92K", "cifar100-mlp": "CIFAR-100", "fashion-mlp": "Fashion-MNIST"}
STEP_SIZES = [2.0 ** (-exponent / 2) for exponent in range(3, 10)]
TUNING_SEEDS, SEEDS = (100, 101), (0, 1, 2, 3, 4)
UPLOAD = "rotated:0.1"
DOWNLINKS = ("rotated:0.2", "rotated:0.5", "rotated:1", "rotated:2")
REFERENCE = ("none", "dense")
METHODS = (REFERENCE, (UPLOAD, "dense"), *((UPLOAD, downlink) for downlink in DOWNLINKS))
ROUNDS, CLIENTS = 50, 25
DEVICE = "cpu"


def configs(step_sizes, seeds):
    return [
        fedpaq.FedPAQConfig(
            clients_per_round=CLIENTS, local_steps=2, total_steps=2 * ROUNDS, batch_size=10, step_size=step, seed=seed
        )
        for step in step_sizes
        for seed in seeds
    ]


def play(problem, method, step_sizes, seeds, every=0):
    return fedpaq.sweep(
        problem,
        configs(step_sizes, seeds),
        quantizer=fedpaq.quantizers.parse(method[0]),
        downlink=parse(method[1]),
        evaluate_every=every,
        device=DEVICE,
    )


class Following(fedpaq.Changes):
    """Changes whose clients are real: each keeps what it receives and compares it with the server's model."""

    def open(self, seeds, num_clients, params):
        return FollowingBroadcast([self.stream(seed, params) for seed in seeds], num_clients)


class FollowingBroadcast(ChangesBroadcast):
    checked = 0

    def __init__(self, streams, num_clients):
        super().__init__(streams, num_clients)
        self._clients = {}

    def send(self, round, runs, participants):
        for run, clients in zip(runs.tolist(), participants.tolist(), strict=True):
            stream = self.streams[run]
            for client in clients:
                held, params = self._clients.get((run, client), (NOTHING, None))
                got = receive(stream.download(held), params, stream.params.size, stream.seed, round)
                if got.tobytes() != stream.params.tobytes():
                    raise SystemExit(f"client {client} of run {run} does not hold the model of round {round}")
                self._clients[run, client] = (round, got)
                FollowingBroadcast.checked += 1
        return super().send(round, runs, participants)


def follow(data_dir):
    problem = fedpaq.problems.load("cifar10-mlp-92k", num_clients=50, seed=0, data_dir=data_dir)
    quantizer, downlink = fedpaq.quantizers.parse(UPLOAD), Following("rotated:0.5")
    short = [fedpaq.FedPAQConfig(clients_per_round=10, local_steps=2, total_steps=30, step_size=0.1, seed=1)]
    fedpaq.sweep(problem, short, quantizer=quantizer, downlink=downlink, evaluate_every=0, device=DEVICE)
    return FollowingBroadcast.checked


def tuned(problem, method):
    losses = [
        math.inf if history.diverged else history.final.loss
        for history in play(problem, method, STEP_SIZES, TUNING_SEEDS)
    ]
    means = np.array(losses).reshape(len(STEP_SIZES), -1).mean(axis=1)
    return STEP_SIZES[int(np.argmin(means))]


def curve(history):
    rows = [record for record in history.records if record.loss is not None]
    each = CLIENTS * ROUNDS
    return {
        "kilobytes": [(row.payload_bytes + row.download_bytes) / 1e3 / each * ROUNDS for row in rows],
        "loss": [row.loss for row in rows],
    }


def interval(ratios):
    logs = np.log(ratios)
    half = scipy.stats.t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / math.sqrt(len(logs))
    return [float(np.exp(logs.mean() + sign * half)) for sign in (0, -1, 1)]


def compare(name, data_dir):
    problem = fedpaq.problems.load(name, num_clients=50, seed=0, data_dir=data_dir)
    rows, reference = [], None
    for method in METHODS:
        step = tuned(problem, method)
        histories = play(problem, method, [step], SEEDS, every=5)
        losses = np.array([history.final.loss for history in histories])
        reference = losses if reference is None else reference
        uploads = CLIENTS * ROUNDS
        up, down = (
            float(np.mean([getattr(history.final, which) for history in histories])) / uploads
            for which in ("payload_bytes", "download_bytes")
        )
        rows.append(
            {
                "quantizer": method[0],
                "downlink": parse(method[1]).name,
                "step_size": step,
                "loss": float(losses.mean()),
                "over_float32": interval(losses / reference) if method != REFERENCE else [1.0, 1.0, 1.0],
                "upload_bytes": up,
                "download_bytes": down,
                "share_of_dense": (up + down) / (2 * fedpaq.codec.raw_bytes(problem.dimension)),
                "curves": [curve(history) for history in histories],
            }
        )
        shown = rows[-1]
        print(
            f"{name:16} {method[0]:12} {shown['downlink']:22} eta={step:.4f} loss {shown['loss']:.4f} "
            f"x{shown['over_float32'][0]:.4f} [{shown['over_float32'][1]:.4f}, {shown['over_float32'][2]:.4f}] "
            f"up {up:,.0f} B, down {down:,.0f} B, 1/{1 / shown['share_of_dense']:.1f} of dense",
            flush=True,
        )
    return rows


def many_clients(data_dir):
    problem = fedpaq.problems.load("cifar10-mlp-92k", num_clients=1000, seed=0, data_dir=data_dir)
    rows = []
    for text in ("dense", "rotated:1/none", "rotated:0.2/none", "rotated:1/rotated:8", "rotated:1/rotated:6"):
        histories = play(problem, ("none", text), [2.0**-3.5], SEEDS)
        down = [history.final.download_bytes / (CLIENTS * ROUNDS) for history in histories]
        rows.append(
            {
                "downlink": text,
                "loss": float(np.mean([history.final.loss for history in histories])),
                "download_bytes": float(np.mean(down)),
                "most_of_dense": max(down) / fedpaq.codec.raw_bytes(problem.dimension),
            }
        )
        print("n=1000", rows[-1], flush=True)
    return rows


def draw(results, path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(results), figsize=(11, 3.8), constrained_layout=True)
    for axis, name in zip(axes, PROBLEMS, strict=True):
        rows = results[name]
        for row in rows:
            if row["downlink"] == "dense":
                label = "float32 both ways" if row["quantizer"] == "none" else "Rotated up, float32 down"
                style = {"color": "black" if row["quantizer"] == "none" else "gray", "linestyle": "--"}
            else:
                rate = row["downlink"].split("/")[0].split(":")[1]
                label, style = f"Rotated up, changes down at {rate} bits", {}
            loss = np.mean([each["loss"] for each in row["curves"]], axis=0)
            sent = np.mean([each["kilobytes"] for each in row["curves"]], axis=0)
            axis.plot(sent[1:], loss[1:], label=label, **style)
        axis.set_xscale("log")
        axis.set_title(PROBLEMS[name])
        axis.set_xlabel("kB sent per participant, both ways")
    axes[0].set_ylabel("training loss")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path, dpi=140)


def coding(dimension=11_000_000, repeats=9):
    """Return the seconds in which the server makes a round's change: the whole of it, once for all clients."""
    rng = np.random.default_rng(0)
    params, means = rng.standard_normal(dimension, np.float32), rng.standard_normal((2, dimension)) * 1e-3
    found = {}
    for text in DOWNLINKS:
        stream, times, copies = parse(text).stream(0, params), [], []
        for at in range(1 + repeats):
            holders = np.full(CLIENTS, stream.round)  # all hold the last model, so a change is due
            start = time.perf_counter()
            stream.advance(means[at % 2], holders)
            between = time.perf_counter()
            params.copy()
            times.append(between - start)
            copies.append(time.perf_counter() - between)
        seconds = statistics.median(times[1:])
        found[text] = {"seconds": seconds, "over_copying_the_model": seconds / statistics.median(copies[1:])}
        found[text]["bytes"] = sum(map(len, stream.download(stream.round - 1).payloads))
        print(text, found[text], flush=True)
    return found


def main() -> int:
    global DEVICE
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--draw", action="store_true")
    parser.add_argument("--coding", action="store_true")
    parser.add_argument("--problems", nargs="*", default=list(PROBLEMS), help="results of others stay")
    arguments, path = parser.parse_args(), Path(os.environ.get("OUT", RESULTS)) / "downloads.json"
    if arguments.draw:
        picture = Path(__file__).resolve().parent.parent / "docs" / "figures" / "downloads.png"
        draw(json.loads(path.read_text())["problems"], picture)
        return 0
    if arguments.coding:
        found = {**json.loads(path.read_text()), "coding": coding()}
        path.write_text(json.dumps(found, indent=1) + "\n")
        return 0
    data_dir, DEVICE = os.environ.get("FEDPAQ_DATA"), arguments.device
    if not data_dir:
        print("set FEDPAQ_DATA to the folder with the datasets")
        return 77
    found = json.loads(path.read_text()) if path.exists() else {"problems": {}}
    found |= {"machine": machine(), "device": DEVICE}
    if "cifar10-mlp-92k" in arguments.problems:
        found |= {"models_compared": follow(data_dir), "many_clients": many_clients(data_dir)}
    for name in arguments.problems:
        found["problems"][name] = compare(name, data_dir)
        path.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
