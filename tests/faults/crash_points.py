"""Die at every line of a save, one after another, and tell what is found afterwards.

    python tests/faults/crash_points.py

A forked process holds the lock and saves generation 1 over generation 0; it kills itself just
before the n-th line of fedpaq's own code that it executes, for n = 1, 2, ... until it survives.
Prints one JSON line per crash point: the line, the generation found, the files left.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import warnings
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from fedpaq.storage import atomic_file, checkpoint
from fedpaq.storage import lock as run_lock

WATCHED = {module.__file__ for module in (atomic_file, checkpoint, run_lock)}


def die_at(number: int, note: int) -> Any:
    """Return a tracer that reports the line and kills the process at watched line ``number``."""
    count = 0

    def tracer(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        if frame.f_code.co_filename not in WATCHED:
            return None
        if event == "line":
            count += 1
            if count == number:
                os.write(note, f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}".encode())
                os.kill(os.getpid(), signal.SIGKILL)
        return tracer

    return tracer


def save(path: Path, generation: int) -> None:
    """Save a generation under the lock."""
    with run_lock.hold(path):
        checkpoint.save(path, {"generation": generation}, {"params": np.full(1000, generation, np.float32)})


def crash(number: int, folder: Path) -> dict[str, Any] | None:
    """Crash a save at watched line ``number``; return what is found, or None if it survived."""
    path = folder / "run.ckpt"
    save(path, 0)
    read_end, write_end = os.pipe()
    child = os.fork()
    if not child:
        sys.settrace(die_at(number, write_end))
        save(path, 1)
        os._exit(0)
    os.close(write_end)
    _, status = os.waitpid(child, 0)
    line = os.read(read_end, 100).decode()
    os.close(read_end)
    if status == 0:
        return None
    with run_lock.hold(path):
        header, arrays = checkpoint.load(path)
    whole = bool((arrays["params"] == header["generation"]).all())
    save(path, 2)
    left = sorted(entry.name for entry in folder.iterdir())
    return {"line": line, "generation": header["generation"], "whole": whole, "left": left}


def main() -> None:
    """Walk through all crash points."""
    warnings.simplefilter("error")
    number = 0
    while True:
        number += 1
        with tempfile.TemporaryDirectory() as folder:
            found = crash(number, Path(folder))
        if found is None:
            return
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
