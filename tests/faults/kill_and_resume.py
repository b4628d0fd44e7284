"""Kill a checkpointed run with SIGKILL at random instants, resume it, compare with one never killed.

    PYTHONPATH=tests python tests/faults/kill_and_resume.py --kills 100

Every life of a run is a process of its own, forked from one that has trained and saved already, on one
thread: so it begins in a moment, and most of it is rounds. Instants are uniform over what a life takes, so
kills hit start-up, loading, rounds and all steps of saving. A run is killed until it gets through; then the
next one starts, until there have been enough kills: the last run gets through after them. Prints and, with
--write, records what was found.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

os.environ["NUMBA_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"  # threads do not survive a fork

import numpy as np

import fedpaq
from fedpaq.storage import checkpoint as files
from small_problems import make_problem

RESULT = Path(__file__).parent / "results" / "kill_and_resume.json"
ROUNDS = 60
UNDISTURBED = 600.0  # seconds, far beyond what a run takes


def settings(seed: int) -> tuple[fedpaq.Problem, fedpaq.FedPAQConfig, fedpaq.LowPrecision]:
    """Return a run that takes about a second."""
    config = fedpaq.FedPAQConfig(
        clients_per_round=4, local_steps=2, total_steps=2 * ROUNDS, batch_size=4, step_size=0.1, seed=seed
    )
    return make_problem("mlp"), config, fedpaq.LowPrecision(levels=1)


def live(seed: int, output: Path, checkpoint: Path | None = None) -> int:
    """Fork a process that trains and writes its history; return its id."""
    child = os.fork()
    if child:
        return child
    try:
        problem, config, quantizer = settings(seed)
        fedpaq.train(problem, config, quantizer=quantizer, checkpoint=checkpoint).save(output)
        os._exit(0)
    finally:
        os._exit(1)


def finished(child: int, seconds: float) -> bool:
    """Wait up to ``seconds`` for a process, else kill it; tell whether it got through."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            if status:
                raise SystemExit(f"a life ended by itself with status {status}")
            return True
        time.sleep(0.0005)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return status == 0


def scene(folder: Path) -> str:
    """Say in what state a kill left the folder."""
    names = {entry.name for entry in folder.iterdir()}
    if any(name.endswith(".part") for name in names):
        return "while writing the new file"
    if "run.ckpt.previous" in names and "run.ckpt" not in names:
        return "between the two renames"
    if "run.ckpt.lock" in names:
        return "in a round" if "run.ckpt" in names else "before the first save"
    return "at start-up or exit"


def one_run(seed: int, folder: Path, rng: np.random.Generator, kills: int) -> Counter[str]:
    """Kill and resume one run until it gets through, at most ``kills`` times; return where kills hit."""
    whole, resumed, path = folder / "whole.json", folder / "resumed.json", folder / "saved" / "run.ckpt"
    path.parent.mkdir(parents=True)
    start = time.monotonic()
    if not finished(live(seed, whole), UNDISTURBED):
        raise SystemExit("an undisturbed run did not end")
    seconds, hits = time.monotonic() - start, Counter[str]()
    while not finished(live(seed, resumed, path), rng.uniform(0.0, seconds) if hits.total() < kills else UNDISTURBED):
        hits[scene(path.parent)] += 1
        seconds *= 1.1  # lives have a start to get over, so let them grow until one gets through
        if files.exists(path):
            files.load(path)  # whatever the instant, there is a valid state
    left = sorted(entry.name for entry in path.parent.iterdir())
    if resumed.read_bytes() != whole.read_bytes():
        raise SystemExit(f"seed={seed}: the resumed history differs from the whole one")
    if left != ["run.ckpt", "run.ckpt.previous"]:
        raise SystemExit(f"seed={seed}: stray files {left}")
    if len(fedpaq.History.load(resumed).records) != ROUNDS + 1:
        raise SystemExit(f"seed={seed}: the history is not complete")
    return hits


def main() -> None:
    """Run until there have been enough kills, then report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help=f"record the result in {RESULT.name}")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        problem, config, quantizer = settings(seed=0)
        fedpaq.train(problem, config, quantizer=quantizer, checkpoint=Path(folder, "run.ckpt"))
    rng, hits, runs = np.random.default_rng(options.seed), Counter[str](), 0
    while hits.total() < options.kills:
        with tempfile.TemporaryDirectory() as folder:
            hits, runs = hits + one_run(runs, Path(folder), rng, options.kills - hits.total()), runs + 1
        print(f"{runs} runs, {hits.total()} kills", file=sys.stderr, flush=True)
    result = {
        "kills": hits.total(),
        "runs": runs,
        "rounds_per_run": ROUNDS,
        "where_kills_hit": dict(hits.most_common()),
        "bit_identical_histories": runs,
        "stray_files": 0,
    }
    print(json.dumps(result, indent=1))
    if options.write:
        RESULT.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
