"""Start-up: what `fedpaq run` and `fedpaq theory` take beside `import torch`, and the first run, which compiles.

A first run is one whose cache of machine code is empty, as after `pip install`. Seconds of processor time stand beside
the wall clock: they say what a busy machine would show if it were quiet.

    python benchmarks/startup.py [--repeats 5]
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

from measurement import summary, write

COMMANDS = {
    "import torch": ["-c", "import torch"],
    "fedpaq run": ["-m", "fedpaq", "run", "mnist-logistic"],
    "fedpaq theory": ["-m", "fedpaq", "theory", "mnist-logistic"],
}


def timed(arguments: list[str], cache: str) -> tuple[float, float]:
    """Run Python with a cache of machine code; return seconds of wall clock and of processors."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    environment = {**os.environ, "NUMBA_CACHE_DIR": cache}
    subprocess.run([sys.executable, *arguments], env=environment, check=True, capture_output=True)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Time the commands in turn; write benchmarks/results/startup.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as cache:
        times = {"first fedpaq run": [timed(COMMANDS["fedpaq run"], cache)], **{name: [] for name in COMMANDS}}
        timed(COMMANDS["fedpaq theory"], cache)
        for _ in range(repeats):
            for name, arguments in COMMANDS.items():
                times[name].append(timed(arguments, cache))
    rows = {}
    for name, pairs in times.items():
        walls, processors = zip(*pairs, strict=True)
        rows[name] = {**summary(list(walls)), "processor_seconds": statistics.median(processors)}
        print(f"{name:18} {rows[name]['median_seconds']:6.2f} s, processors {rows[name]['processor_seconds']:6.2f} s")
    print("written:", write("startup", {"load_before": load, "commands": rows}).name)


if __name__ == "__main__":
    main()
