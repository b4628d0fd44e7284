"""Worker: a process of its own that makes curves, one after another.

Tasks reach it on standard input, what comes of them leaves on standard output, both as lines of JSON. It writes no
file, so it can be ended at any moment. Ctrl-C reaches only its parent, which then ends it; a worker whose parent was
killed finds that nobody reads its progress any more, and ends too.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from fedpaq import errors, problems
from fedpaq.errors import LostRankError
from fedpaq.experiments import runner
from fedpaq.experiments.curve import Curve, CurveSettings
from fedpaq.experiments.following import following
from fedpaq.problems import Problem

SECONDS = 0.1  # between two messages about progress
LIMITS = ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class Worker:
    """The parent's side of one process, which has ``threads`` threads."""

    def __init__(self, threads: int) -> None:
        paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            **dict.fromkeys(LIMITS, str(threads)),
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "PYTHONSAFEPATH": "1",  # a file of the user's folder is not a module
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fedpaq.experiments.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )

    def make(
        self, settings: CurveSettings, curve: Curve | None, data_dir: Path | None, advance: Callable[[int], None]
    ) -> Curve:
        """Return the curve with these settings, tuned and begun, or ``curve`` with more seeds.

        ``advance`` is called with the gradient computations done. Raises what the process raised, or LostRankError
        if it has gone.
        """
        begun = None if curve is None else curve.to_json()
        task = {"settings": settings.values, "curve": begun, "data_dir": None if data_dir is None else str(data_dir)}
        try:
            _send(self._process.stdin, task)
            for line in self._process.stdout or ():
                if not line.endswith(b"\n"):
                    break  # it went while it wrote
                answer = json.loads(line)
                if "curve" in answer:
                    return Curve.from_json(answer["curve"])
                if "error" in answer:
                    raise received(**answer)
                advance(answer["advance"])
        except BrokenPipeError:
            pass
        raise LostRankError(
            f"exit code {self._process.wait()}: a process that made {settings.problem}, {settings.setting.slug} has "
            "gone; finished curves are kept, the same command continues"
        )

    def end(self) -> None:
        """End the process at once, whatever it does."""
        self._process.terminate()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(BrokenPipeError):  # a task that was not read any more
                stream.close()  # type: ignore[union-attr]


def serve(tasks: BinaryIO, results: BinaryIO) -> None:
    """Make curves until there are no more tasks, or nobody wants them."""
    try:
        for line in tasks:
            try:
                _send(results, {"curve": _made(json.loads(line), _Told(results)).to_json()})
            except BrokenPipeError:
                raise
            except Exception as error:
                found = {"error": type(error).__name__, "text": str(error), "trace": traceback.format_exc()}
                _send(results, found)
    except BrokenPipeError:
        os._exit(1)  # the parent has gone; without another word on the broken pipe


def _made(task: dict[str, Any], told: _Told) -> Curve:
    settings, data_dir = CurveSettings.from_values(task["settings"]), task["data_dir"]
    problem = _problem(settings, data_dir)
    if task["curve"] is None:
        curve = runner.run_curve(problem, settings, told)
    else:
        curve = runner.extended(problem, Curve.from_json(task["curve"]), told)
    told.flush()
    return curve


def received(error: str, text: str, trace: str) -> Exception:
    """Return an error of a worker: one of ours as it was, another in words, with its traceback for ``--debug``."""
    kind = getattr(errors, error, None)
    known = isinstance(kind, type) and issubclass(kind, errors.FedPAQError)
    found: Exception = kind(text) if known else RuntimeError(f"{error}: {text}")  # type: ignore[misc]
    found.add_note(trace)
    return found


class _Told:
    """Progress that tells the parent now and then."""

    def __init__(self, results: BinaryIO) -> None:
        self._results, self._gradients, self._last = results, 0, time.monotonic()

    def __call__(self, setting: object, gradients: int) -> None:
        self._gradients += gradients
        if time.monotonic() - self._last > SECONDS:
            self.flush()

    def flush(self) -> None:
        _send(self._results, {"advance": self._gradients})
        self._gradients, self._last = 0, time.monotonic()


_kept: dict[tuple[str, int, int], Problem] = {}


def _problem(settings: CurveSettings, data_dir: str | None) -> Problem:
    """Return the problem of a curve; only one is kept, for its data is large."""
    key = settings.problem, settings.num_clients, settings.problem_seed
    if key not in _kept:
        _kept.clear()
        name, clients, seed = key
        _kept[key] = following(problems.load(name, num_clients=clients, seed=seed, data_dir=data_dir))
    return _kept[key]


def _send(stream: Any, value: dict[str, Any]) -> None:
    stream.write(json.dumps(value).encode() + b"\n")
    stream.flush()


def main() -> None:
    """Serve the parent; what libraries print goes to standard error."""
    gc.freeze()  # the libraries stay; looking through them for garbage took 2 % of an MNIST curve
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, results)


if __name__ == "__main__":
    main()
