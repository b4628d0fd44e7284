"""Speed in company: jobs J1 to J3 alone and beside busy processes, against one thread in the same conditions.

Every variant is a process of its own that waits for orders; they take turns within one run. Another version of fedpaq
joins in with --before, the folder that holds its package. --note says what else the machine was doing.

    python benchmarks/company.py [--jobs J1 J2 J3] [--repeats 9] [--busy 0 2] [--before OLD/src] [--note TEXT]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from measurement import seconds_of, summary, write

BURN = "while True: pass"


class Server:
    """A process that runs jobs when told to."""

    def __init__(self, stack: ExitStack, environment: dict[str, str]) -> None:
        command = [sys.executable, __file__, "--serve"]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, env={**os.environ, **environment}, stdin=pipe, stdout=pipe, text=True)
        self._process = stack.enter_context(process)
        stack.callback(process.kill)

    def seconds(self, job: str) -> float:
        """Run a job and return its wall-clock seconds."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{job}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())


def serve() -> None:
    """Run the jobs named on standard input and write their seconds."""
    import fedpaq
    from simulation import setting

    quantizer = fedpaq.LowPrecision(levels=1)
    for line in sys.stdin:
        problem, config = setting(line.strip())
        print(seconds_of(lambda: fedpaq.train(problem, config, quantizer=quantizer, evaluate_every=0)), flush=True)  # noqa: B023


def measure(servers: dict[str, Server], jobs: list[str], repeats: int, busy: int) -> dict[str, Any]:
    """Time every job on every server in turn beside ``busy`` processes."""
    with ExitStack() as stack:
        for _ in range(busy):
            process = stack.enter_context(subprocess.Popen([sys.executable, "-c", BURN]))
            stack.callback(process.kill)
        load = os.getloadavg()[0]
        rows = {}
        for job in jobs:
            times: dict[str, list[float]] = {name: [] for name in servers}
            for _ in range(repeats):
                for name, server in servers.items():
                    times[name].append(server.seconds(job))
            alone = times["one thread"]
            rows[job] = {
                name: {
                    **summary(values),
                    "over_one_thread": statistics.median(values) / statistics.median(alone),
                    "least_over_one_thread": min(values) / min(alone),
                }
                for name, values in times.items()
            }
            for name, row in rows[job].items():
                print(
                    f"{busy} busy, {job}, {name:12}"
                    f" median {row['median_seconds']:7.4f} s ({row['over_one_thread']:5.2f} x)"
                    f"   least {row['least_seconds']:7.4f} s ({row['least_over_one_thread']:5.2f} x one thread)"
                )
    return {"busy_processes": busy, "load_before": load, "jobs": rows}


def main() -> None:
    """Time all variants alone and in company; write benchmarks/results/company.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", nargs="+", default=["J1", "J2", "J3"], choices=["J1", "J2", "J3"])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 2])
    parser.add_argument("--before", type=Path)
    parser.add_argument("--note", default="a quiet machine")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve()
        return
    variants: dict[str, dict[str, str]] = {"fedpaq": {}, "one thread": {"NUMBA_NUM_THREADS": "1"}}
    if arguments.before:
        variants["before"] = {"PYTHONPATH": str(arguments.before.resolve())}
    with ExitStack() as stack:
        servers = {name: Server(stack, environment) for name, environment in variants.items()}
        for server in servers.values():  # kernels compiled, data read
            for job in arguments.jobs:
                server.seconds(job)
        results = [measure(servers, arguments.jobs, arguments.repeats, busy) for busy in arguments.busy]
    print("written:", write("company", {"note": arguments.note, "conditions": results}).name)


if __name__ == "__main__":
    main()
