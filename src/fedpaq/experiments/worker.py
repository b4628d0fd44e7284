"""Worker: a process of its own that makes curves, one after another.

Tasks reach it on standard input, what comes of them leaves on standard output, both pickled. It writes no file, so
it can be ended at any moment. Ctrl-C reaches only its parent, which then ends it; a worker whose parent was killed
finds that nobody reads its progress any more, and ends too.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from fedpaq.errors import LostRankError
from fedpaq.experiments import runner
from fedpaq.experiments.curve import Curve, CurveSettings
from fedpaq.experiments.figures import Figure
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
        self,
        figure: Figure,
        settings: CurveSettings,
        curve: Curve | None,
        data_dir: Path | None,
        advance: Callable[[int], None],
    ) -> Curve:
        """Return the curve with these settings, tuned and begun, or ``curve`` with more seeds.

        ``advance`` is called with the gradient computations done. Raises what the process raised, or LostRankError
        if it has gone.
        """
        try:
            _send(self._process.stdin, (figure, settings, curve, data_dir))
            while True:
                kind, value = pickle.load(self._process.stdout)  # type: ignore[arg-type]
                if kind == "advance":
                    advance(value)
                elif kind == "error":
                    raise value
                else:
                    return value  # type: ignore[no-any-return]
        except (EOFError, pickle.UnpicklingError, BrokenPipeError) as error:
            code = self._process.wait()
            raise LostRankError(
                f"exit code {code}: a process that made {figure.name}, {settings.setting.slug} has gone; "
                "finished curves are kept, the same command continues"
            ) from error

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
        while True:
            try:
                figure, settings, curve, data_dir = pickle.load(tasks)
            except EOFError:
                return
            try:
                told = _Told(results)
                problem = _problem(figure, data_dir)
                if curve is None:
                    made = runner.run_curve(problem, settings, told)
                else:
                    made = runner.extended(problem, curve, told)
                told.flush()
            except BrokenPipeError:
                raise
            except Exception as error:
                _send(results, ("error", _portable(error)))
            else:
                _send(results, ("curve", made))
    except BrokenPipeError:
        os._exit(1)  # the parent has gone; without another word on the broken pipe


class _Told:
    """Progress that tells the parent now and then."""

    def __init__(self, results: BinaryIO) -> None:
        self._results, self._gradients, self._last = results, 0, time.monotonic()

    def __call__(self, setting: object, gradients: int) -> None:
        self._gradients += gradients
        if time.monotonic() - self._last > SECONDS:
            self.flush()

    def flush(self) -> None:
        _send(self._results, ("advance", self._gradients))
        self._gradients, self._last = 0, time.monotonic()


_kept: dict[str, Problem] = {}


def _problem(figure: Figure, data_dir: Path | None) -> Problem:
    """Return the figure's problem; only one is kept, for its data is large."""
    if figure.problem not in _kept:
        _kept.clear()
        _kept[figure.problem] = following(runner.load_problem(figure, data_dir))
    return _kept[figure.problem]


def _portable(error: Exception) -> Exception:
    """Return an error that can be sent, with its traceback for those who look for it."""
    error.add_note(traceback.format_exc())
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError("".join(traceback.format_exception(error)))
    return error


def _send(stream: Any, value: Any) -> None:
    pickle.dump(value, stream)
    stream.flush()


def main() -> None:
    """Serve the parent; what libraries print goes to standard error."""
    gc.freeze()  # the libraries stay; looking through them for garbage took 2 % of an MNIST curve
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, results)


if __name__ == "__main__":
    main()
