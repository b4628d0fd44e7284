"""Watchdog: ends a deployment's processes when the one that started them is gone, however that ended.

    python -m fedpaq.flower.trial.watchdog FLWR_HOME      waits for the end of its standard input

Every process of a deployment has the deployment's own ``FLWR_HOME`` in its environment. So orphans
are found too.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Sequence

import psutil

GRACE_SECONDS = 10.0
SEARCHES = 3  # a process that is ending may still start another


def processes_of(home: str | os.PathLike[str]) -> list[psutil.Process]:
    """Return the other processes with this ``FLWR_HOME``."""
    everyone = psutil.process_iter(["environ"])
    found = [one for one in everyone if (one.info["environ"] or {}).get("FLWR_HOME") == str(home)]
    return [one for one in found if one.pid != os.getpid()]


def family(process: psutil.Process) -> list[psutil.Process]:
    """Return a process and all that it and its children have started; none where it has ended."""
    try:
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def end(processes: Sequence[psutil.Process], seconds: float = GRACE_SECONDS) -> None:
    """End processes: politely, and after ``seconds`` by force."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    _, left = psutil.wait_procs(processes, seconds)
    kill(left)


def kill(processes: Sequence[psutil.Process]) -> None:
    """End processes at once, as a power cut would."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, GRACE_SECONDS)


def end_processes_of(home: str | os.PathLike[str]) -> None:
    """End every process with this ``FLWR_HOME``."""
    for _ in range(SEARCHES):
        end(processes_of(home))


def main() -> None:
    """Wait until the process at the other end of standard input is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C in the terminal is for the runner
    sys.stdin.buffer.read()
    end_processes_of(sys.argv[1])


if __name__ == "__main__":
    main()
