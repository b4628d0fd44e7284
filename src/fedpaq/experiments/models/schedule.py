"""Schedule: every trial that is missing, several at a time, until all are done or the time is up.

Workers are processes of their own on the same GPU: while one codes a download on the host, another trains. What a
trial finds is written in one step when it ends, so whatever interrupts the study, the same call goes on with it.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

from fedpaq.experiments.models.arms import Arm
from fedpaq.experiments.models.tasks import Task
from fedpaq.experiments.models.trial import Bench, Result, Run, Trial, Tuning, from_json, to_json
from fedpaq.hardware.devices import require_device
from fedpaq.storage.atomic_file import atomic_write

WORKERS = 3  # on one GPU: more gain nothing
Progress = Callable[[str, int, int], None]  # what has ended, rounds done in all, rounds in all, about

_bench: Bench | None = None  # of a worker process


def run_study(
    tasks: Sequence[Task],
    folder: Path,
    *,
    device: str = "cpu",
    data_dir: Path | None = None,
    seconds: float | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> bool:
    """Run what is missing of the tasks; return whether all is done. After ``seconds`` no trial is begun."""
    require_device(device)
    workers = workers or (1 if device == "cpu" else WORKERS)
    deadline = None if seconds is None else time.monotonic() + seconds
    longest, all_done = 0.0, False
    with _pool(workers, device, data_dir) as begin:
        running: dict[Future[Result], tuple[Trial, float]] = {}
        while True:
            due = missing(tasks, folder)
            all_done = not due
            late = deadline is not None and time.monotonic() + longest > deadline
            busy = [trial for trial, _ in running.values()]
            for trial in [] if late else [each for each in in_order(due) if each not in busy]:
                if len(running) < workers:
                    running[begin(trial)] = trial, time.monotonic()
            if not running:
                return all_done
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                trial, began = running.pop(done)
                longest = max(longest, time.monotonic() - began)
                _save(trial, done.result(), folder)
                if progress is not None:
                    progress(f"{trial.task.name}: {trial.arm.label}", *work(tasks, folder))


def trials(tasks: Sequence[Task], folder: Path) -> list[Trial]:
    """Return every trial that can be named: runs of a quantizer whose step size is known, tunings of the others."""
    found: list[Trial] = []
    for task in tasks:
        for arm in task.arms:
            tuning = tuning_of(task, arm)
            result = result_of(tuning, folder)
            if result is None:
                found.append(tuning)
            else:
                found += [Run(task, arm, seed, result["step_size"]) for seed in task.seeds]
    return list(dict.fromkeys(found))


def tuning_of(task: Task, arm: Arm) -> Tuning:
    """Return the tuning that gives an arm its step size."""
    return Tuning(task.tuned_as or task, Arm(arm.quantizer))


def result_of(trial: Trial, folder: Path) -> Result | None:
    """Return what a trial has found, or None if it is missing or damaged."""
    try:
        return from_json(trial.path(folder).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


def missing(tasks: Sequence[Task], folder: Path) -> list[Trial]:
    """Return the trials that are named and not done, in the order to do them."""
    return [trial for trial in trials(tasks, folder) if result_of(trial, folder) is None]


def in_order(due: Sequence[Trial]) -> list[Trial]:
    """Return the same trials, task by task, tunings first: runs wait for them."""
    names = list(dict.fromkeys(trial.task.name for trial in due))
    return sorted(due, key=lambda trial: (names.index(trial.task.name), isinstance(trial, Run)))


def work(tasks: Sequence[Task], folder: Path) -> tuple[int, int]:
    """Return the rounds done and all rounds, about."""
    done, total = 0, 0
    for task in tasks:
        for tuning in {tuning_of(task, arm) for arm in task.arms}:
            if tuning.task is task:
                total += tuning.cost
                done += tuning.cost if result_of(tuning, folder) is not None else 0
        total += task.rounds * len(task.seeds) * len(task.arms)
    for trial in trials(tasks, folder):
        done += trial.cost if isinstance(trial, Run) and result_of(trial, folder) is not None else 0
    return done, total


def _save(trial: Trial, result: Result, folder: Path) -> None:
    path = trial.path(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, to_json(trial, result).encode())


@contextmanager
def _pool(workers: int, device: str, data_dir: Path | None) -> Iterator[Callable[[Trial], Future[Result]]]:
    """Yield the function that begins a trial; one worker works in this process."""
    if workers == 1:
        bench = Bench(device, data_dir)

        def at_once(trial: Trial) -> Future[Result]:
            future: Future[Result] = Future()
            future.set_result(trial.perform(bench))
            return future

        yield at_once
        return
    context = multiprocessing.get_context("spawn")  # a process that has used CUDA cannot be forked
    with ProcessPoolExecutor(workers, context, _start, (device, data_dir)) as pool:
        try:
            yield lambda trial: pool.submit(_perform, trial)
        except BaseException:
            for process in multiprocessing.active_children():  # a trial takes half a minute: nobody waits for it
                process.terminate()
            raise


def _start(device: str, data_dir: Path | None) -> None:
    global _bench
    _bench = Bench(device, data_dir)


def _perform(trial: Trial) -> Result:
    assert _bench is not None  # ``_start`` made it
    return trial.perform(_bench)
