"""Watchdog: ends a deployment's processes when the one that started them is gone, however that ended.

    python -m fedpaq.flower.trial.watchdog FLWR_HOME      waits for the end of its standard input

Every process of a deployment carries its own ``FLWR_HOME`` in its environment, also one that was
orphaned; where the system shows environments (/proc), none can hide.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

GRACE_SECONDS = 5.0


def processes_of(home: str | os.PathLike[str]) -> list[int]:
    """Return the ids of the processes with this ``FLWR_HOME``; none where the system does not tell."""
    marker, found = f"FLWR_HOME={home}".encode(), []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # gone meanwhile, or not ours to read
            if marker in entry.read_bytes().split(b"\0"):
                found.append(int(entry.parent.name))
    return [pid for pid in found if pid != os.getpid()]


def end_processes_of(home: str | os.PathLike[str]) -> None:
    """End them: politely, then by force."""
    for what, seconds in ((signal.SIGTERM, GRACE_SECONDS), (signal.SIGKILL, GRACE_SECONDS)):
        until = time.monotonic() + seconds
        asked: set[int] = set()
        while (pids := processes_of(home)) and time.monotonic() < until:
            for pid in set(pids) - asked:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, what)
            asked |= set(pids)
            time.sleep(0.1)


def main() -> None:
    """Wait until whoever holds the other end of standard input is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C in the terminal is for the runner
    sys.stdin.buffer.read()
    end_processes_of(sys.argv[1])


if __name__ == "__main__":
    main()
