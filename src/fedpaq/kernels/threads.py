"""Threads: a kernel's jobs spread over the cores, by threads that sleep while there is nothing to do.

Threads of OpenMP wait for their next region by spinning: beside other busy processes they take each other's
time, and a region ends when the last thread has had its turn. Here the caller and its helpers take jobs in small
parts until none is left, and the caller waits only for parts that a helper has begun. A helper that gets no core
is not waited for, so many threads cost little more than one where others keep the cores busy.
"""

import functools
import itertools
import os
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

WORTH_A_THREAD = 150_000  # nanoseconds of work: waking a sleeping thread takes 50,000 to 100,000


@functools.cache
def cores() -> int:
    """Return how many threads kernels may take: what the user has set, or the cores that this process may use."""
    for name in ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS"):  # torchrun sets the second
        chosen = os.environ.get(name, "")
        if chosen.isdigit() and int(chosen) > 0:
            return int(chosen)
    return usable_cores()


def usable_cores() -> int:
    """Return the cores that this process may use."""
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(own, quota_of_cores() or own)


def quota_of_cores(root: Path = Path("/")) -> int | None:
    """Return what the quota of this process's container amounts to in whole cores, at least one; None without."""
    limits = _quotas(root)
    return max(1, int(min(limits))) if limits else None


def _quotas(root: Path) -> list[float]:
    """Return the cores that this process's control groups grant, as far as they can be read."""
    limits = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, place = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        names = ("cpu/", "cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("", "cpu.max")
        mounted = root / "sys/fs/cgroup" / names[0]
        own = mounted / place.strip("/")
        for folder in (own, *(above for above in own.parents if above.is_relative_to(mounted))):
            words = " ".join(_text(folder / name) for name in names[1:]).split()
            if len(words) == 2 and all(word.isdigit() for word in words) and int(words[1]):
                limits.append(int(words[0]) / int(words[1]))
    return limits


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def spread(kernel: Callable[..., Any], arguments: tuple[Any, ...], jobs: int, nanoseconds: float) -> None:
    """Call ``kernel(*arguments, first, last)`` on ranges that together are all jobs, in any order.

    ``nanoseconds`` is about what all of it takes on one thread: little work is done by the caller alone.
    """
    threads = min(cores(), jobs, int(nanoseconds // WORTH_A_THREAD))
    if threads < 2:
        kernel(*arguments, 0, jobs)
        return
    parts = parts_of(jobs, threads)
    turn, finished = itertools.count(), SimpleQueue[BaseException | None]()

    def work() -> None:
        """Take parts until there are no more; the interpreter's lock lets one thread take each."""
        while (part := next(turn)) < len(parts):
            failure = None
            try:
                kernel(*arguments, *parts[part])
            except BaseException as error:
                failure = error
            finished.put(failure)

    for inbox in _helpers(threads - 1):
        inbox.put(work)
    work()
    failures = [failure for failure in (finished.get() for _ in parts) if failure is not None]
    if failures:
        raise failures[0]


@functools.cache
def parts_of(jobs: int, threads: int) -> list[tuple[int, int]]:
    """Return the parts of some jobs, each a thread's share of what is left.

    Large ones come first, since a kernel does much at once better than little; the small ones at the end are for
    whoever is free.

    >>> parts_of(25, 2)
    [(0, 13), (13, 19), (19, 22), (22, 24), (24, 25)]
    """
    ends = [0]
    while ends[-1] < jobs:
        ends.append(ends[-1] - (ends[-1] - jobs) // threads)
    return list(itertools.pairwise(ends))


_inboxes: list[SimpleQueue[Callable[[], Any]]] = []
_starting = threading.Lock()


def _helpers(count: int) -> list[SimpleQueue[Callable[[], Any]]]:
    """Return the inboxes of ``count`` threads, started where there are too few."""
    if len(_inboxes) < count:
        with _starting:
            while len(_inboxes) < count:
                inbox: SimpleQueue[Callable[[], Any]] = SimpleQueue()
                threading.Thread(target=_serve, args=(inbox,), name="fedpaq-kernels", daemon=True).start()
                _inboxes.append(inbox)
    return _inboxes[:count]


def _serve(inbox: SimpleQueue[Callable[[], Any]]) -> None:
    while True:
        inbox.get()()


if hasattr(os, "register_at_fork"):  # a child has none of its parent's threads
    os.register_at_fork(after_in_child=_inboxes.clear)
