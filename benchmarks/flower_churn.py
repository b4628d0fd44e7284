"""A deployment whose SuperNodes come and go, and whose SuperLink is restarted once: does every mean stay right?

    python benchmarks/flower_churn.py [--minutes 15] [--supernodes 8] [--every 20]

Every ``every`` seconds one SuperNode is killed, as a power cut would, or started. After a fifth of the time the
SuperLink is killed and restarted, and the run goes on from its checkpoint. The clients keep the payloads they send, and
the server keeps its models. In the end the mean of each round is computed again from the payloads that the round says
it counted: it must be the server's, to the bit. Memory, descriptors and disk are watched from the restart on.
Results to benchmarks/results/flower_churn.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import fedpaq
from fedpaq import codec
from fedpaq.flower.trial.loopback import Loopback
from fedpaq.flower.trial.watchdog import family
from measurement import write

APP = Path(__file__).resolve().parent / "flower_churn_app"
SAMPLE_SECONDS = 5.0
STAGGER_SECONDS = 2.0  # between two SuperNodes at the start: on one machine their apps share its cores
OWN = ("payloads", "models")  # what the app keeps for the check grows by design


class Churn:
    """A deployment, what was done to it, and what it took."""

    def __init__(self, folder: Path, supernodes: int, deadline: float) -> None:
        self.folder, self.supernodes = folder, supernodes
        for name in OWN:
            (folder / name).mkdir()
        paths = [str(Path(fedpaq.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        environment = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}
        self.deployment = Loopback(folder, num_supernodes=0, environment=environment)
        self._settings = {"folder": str(folder), "num_clients": supernodes, "deadline": deadline}
        self._settings["clients_per_round"] = supernodes // 2
        self.up, self.events, self.samples = set(range(supernodes)), [], []
        self._models = 0  # there were at the restart
        self._draws, self._begun = random.Random(0), time.monotonic()

    def seconds(self) -> float:
        """Since the run began."""
        return time.monotonic() - self._begun

    def start(self) -> None:
        """Start the run, or go on with it."""
        self._run = self.deployment.start_run(APP, **self._settings)

    def begin(self) -> None:
        """Start the run and one SuperNode after another, and wait for the first round: the churn begins then."""
        self.start()
        for number in range(self.supernodes):
            self.deployment.start_supernode(number)
            time.sleep(STAGGER_SECONDS)
        self._await(self.folder / "models" / "1.npy")
        self._begun = time.monotonic()

    def churn(self) -> None:
        """Kill or start one SuperNode; at least half of them stay."""
        down = sorted(set(range(self.supernodes)) - self.up)
        few, all_up = len(self.up) <= self.supernodes // 2, not down
        if all_up or (not few and self._draws.random() < 0.5):
            node = self._draws.choice(sorted(self.up))
            self.deployment.kill(f"supernode-{node}")
            self.up.remove(node)
            self._note(f"SuperNode {node} killed")
        else:
            node = self._draws.choice(down)
            self.deployment.start_supernode(node)
            self.up.add(node)
            self._note(f"SuperNode {node} started")

    def restart(self) -> None:
        """Kill the SuperLink, start it again, and go on with the run; the time that this takes does not count."""
        began, self._models = time.monotonic(), len(list((self.folder / "models").iterdir()))
        self.deployment.kill("superlink")
        with contextlib.suppress(psutil.TimeoutExpired):
            self._run.wait(30)
        self.deployment.start_superlink()
        self.start()
        self._begun += time.monotonic() - began
        self._note("SuperLink killed and restarted")

    def sample(self) -> None:
        """Note memory, descriptors and disk."""
        found: dict[str, float] = {"seconds": self.seconds()}
        with contextlib.suppress(psutil.Error, KeyError):
            link, *others = family(self.deployment._processes["superlink"])
            serving = [one for one in others if any("flwr-serverapp" in part for part in one.cmdline())]
            nodes = [self.deployment._processes[f"supernode-{node}"] for node in sorted(self.up)]
            for name, processes in (("superlink", [link]), ("serverapp", serving[-1:]), ("supernode", nodes)):
                if processes:
                    found[f"{name}_megabytes"] = statistics.mean(one.memory_info().rss for one in processes) / 1e6
                    found[f"{name}_descriptors"] = statistics.mean(one.num_fds() for one in processes)
            found["disk_megabytes"] = disk_bytes(self.folder) / 1e6
            self.samples.append(found)

    def end(self) -> None:
        """Let the run end after its round, one after the restart at the least."""
        self._await(self.folder / "models" / f"{self._models}.npy")
        (self.folder / "stop").touch()
        self._await(self.folder / "history.json")

    def _note(self, event: str) -> None:
        self.events.append({"seconds": round(self.seconds(), 1), "event": event})
        print(f"{self.seconds():6.1f} s  {event}", flush=True)

    def _await(self, path: Path, seconds: float = 600.0) -> None:
        until = time.monotonic() + seconds
        while not path.exists():
            if time.monotonic() > until:
                raise TimeoutError(f"{path.name} did not appear:\n{self.deployment.log('run-1')[-2000:]}")
            time.sleep(0.2)


def disk_bytes(folder: Path) -> int:
    """Return what the deployment itself keeps on the disk."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            if path.is_file() and path.relative_to(folder).parts[0] not in OWN:
                total += path.stat().st_size
    return total


def recomputed(folder: Path) -> dict[str, Any]:
    """Raise unless each round's model is the one before plus the mean of the payloads it says it counted."""
    history = json.loads((folder / "history.json").read_text())
    differing = sorted(path.name for path in (folder / "payloads").glob("*.differs"))
    if differing:
        raise SystemExit(f"{differing}: a client made another payload of the same round")
    counts: dict[str, int] = dict.fromkeys(("asked", "counted", "late", "rejected"), 0)
    for round, record in enumerate(history):
        before, after = (np.load(folder / "models" / f"{at}.npy") for at in (round, round + 1))
        total = np.zeros(before.size)
        for client in record["counted"]:
            payload = (folder / "payloads" / f"{round}-{client}").read_bytes()
            codec.accumulate(payload, total, key=fedpaq.Key(seed=0, round=round, client=client))
        expected = (before + total / max(1, len(record["counted"]))).astype(np.float32)
        if not np.array_equal(after, expected):
            raise SystemExit(f"round {round + 1}: the model is not the mean of {record['counted']}")
        counts = {name: count + len(record[name]) for name, count in counts.items()}
    rows = [json.loads(line)["round"] for line in (folder / "rounds.jsonl").read_text().splitlines()]
    if rows != list(range(1, len(rows) + 1)):
        raise SystemExit(f"the log has the rounds {rows}")
    return {"rounds": len(history), **counts}


def growth(samples: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Return the median of each amount in the first and in the last third of the samples."""
    third = max(1, len(samples) // 3)
    names = sorted({name for sample in samples for name in sample} - {"seconds"})
    ends = {"first": samples[:third], "last": samples[-third:]}
    return {
        name: {
            end: round(statistics.median([sample[name] for sample in part if name in sample] or [float("nan")]), 1)
            for end, part in ends.items()
        }
        for name in names
    }


def churn(folder: Path, *, seconds: float, supernodes: int, every: float, deadline: float) -> dict[str, Any]:
    """Let SuperNodes come and go for some time; return what was checked and measured."""
    one = Churn(folder, supernodes, deadline)
    with one.deployment:
        one.begin()
        next_event, next_sample, restarted = every, SAMPLE_SECONDS, 0.0
        while one.seconds() < seconds:
            if not restarted and one.seconds() >= seconds / 5:
                one.restart()
                restarted = one.seconds()
            if one.seconds() >= next_event:
                one.churn()
                next_event += every
            if one.seconds() >= next_sample:
                one.sample()
                next_sample += SAMPLE_SECONDS
            time.sleep(0.2)
        one.end()
    settled = [sample for sample in one.samples if sample["seconds"] > restarted + seconds / 10]
    return {
        "seconds": seconds,
        "supernodes": supernodes,
        "every": every,
        **recomputed(folder),
        "growth": growth(settled),
        "events": one.events,
    }


def main() -> None:
    """Run, check, record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--supernodes", type=int, default=8)
    parser.add_argument("--every", type=float, default=20.0)
    parser.add_argument("--deadline", type=float, default=30.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = churn(
            Path(folder),
            seconds=60 * options.minutes,
            supernodes=options.supernodes,
            every=options.every,
            deadline=options.deadline,
        )
    print(f"{found['rounds']} rounds, every mean as recomputed from the {found['counted']} payloads that counted")
    print(json.dumps(found["growth"], indent=1))
    write("flower_churn", found)


if __name__ == "__main__":
    main()
