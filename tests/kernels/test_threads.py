"""Threads: every job is done once, however many threads there are, and quotas are read."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from fedpaq.kernels import threads
from fedpaq.kernels.threads import quota_of_cores, spread, usable_cores

MUCH = 1e9  # nanoseconds


@pytest.fixture
def four_cores(monkeypatch):
    monkeypatch.setattr(threads, "cores", lambda: 4)


@pytest.mark.parametrize("jobs", [0, 1, 2, 3, 15, 16, 1000])
def test_every_job_is_done_once(jobs, four_cores):
    done = np.zeros(jobs, np.int64)

    def kernel(counts, first, last):
        counts[first:last] += 1

    for _ in range(20):
        spread(kernel, (done,), jobs, MUCH)
    assert (done == 20).all()


def test_much_work_is_done_by_several_threads_and_little_by_the_caller(four_cores):
    meeting = threading.Barrier(4, timeout=20)
    seen, waiting = set(), [first for first, _ in threads.parts_of(16, 4)[:4]]

    def kernel(first, last):
        seen.add(threading.current_thread())
        if first in waiting:
            meeting.wait()  # passes only if four threads are at work at the same time

    spread(kernel, (), 16, MUCH)
    assert len(seen) == 4 and threading.current_thread() in seen
    seen.clear()
    meeting.reset()
    spread(lambda first, last: seen.add((first, last, threading.current_thread())), (), 16, 1000)
    assert seen == {(0, 16, threading.current_thread())}


def test_a_helper_that_gets_no_core_is_not_waited_for(four_cores):
    """The helpers are kept busy with something else: the caller does all jobs itself."""
    blocked, release = threading.Semaphore(0), threading.Event()

    def hold():
        blocked.release()
        release.wait(20)

    for inbox in threads._helpers(3):
        inbox.put(hold)
    for _ in range(3):
        assert blocked.acquire(timeout=20)
    seen = []
    spread(lambda first, last: seen.append(threading.current_thread()), (), 16, MUCH)
    assert seen == [threading.current_thread()] * len(threads.parts_of(16, 4))
    release.set()


@pytest.mark.parametrize("jobs", [1, 2, 3, 25, 1000])
@pytest.mark.parametrize("count", [1, 2, 3, 16])
def test_parts_are_all_jobs_each_a_thread_s_share_of_what_is_left(jobs, count):
    parts = threads.parts_of(jobs, count)
    assert [job for first, last in parts for job in range(first, last)] == list(range(jobs))
    assert all(last - first == -(-(jobs - first) // count) for first, last in parts)


def test_an_error_reaches_the_caller_after_the_others_have_finished(four_cores):
    running = []

    def kernel(first, last):
        if first == 0:
            raise ZeroDivisionError("job 0")
        running.append(first)
        time.sleep(0.01)
        running.remove(first)

    with pytest.raises(ZeroDivisionError, match="job 0"):
        spread(kernel, (), 8, MUCH)
    assert not running


def test_a_forked_child_has_threads_of_its_own():
    code = (
        "import os\n"
        "from fedpaq.kernels import threads\n"
        "threads.cores = lambda: 2\n"
        "done = []\n"
        "threads.spread(lambda first, last: done.append(last - first), (), 8, 1e9)\n"
        "if child := os.fork():\n"
        "    raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "threads.spread(lambda first, last: done.append(last - first), (), 8, 1e9)\n"
        "os._exit(0 if sum(done) == 16 else 1)\n"
    )
    if not hasattr(os, "fork"):
        pytest.skip("no fork here")
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def fake(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "250000 100000\n"}, 2),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"}, 1),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "300000 100000\n"}, 3),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
                "sys/fs/cgroup/a/cpu.max": "200000 100000\n",
            },
            2,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/x\n3:cpu,cpuacct:/docker/1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "400000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            4,
        ),
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            None,
        ),
    ],
)
def test_a_quota_is_read_from_either_version_of_control_groups(files, cores, tmp_path):
    assert quota_of_cores(fake(tmp_path, files)) == cores


def test_the_number_of_threads_is_the_user_s_or_that_of_the_usable_cores(monkeypatch):
    for name in ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    expected = {(None, None): usable_cores(), ("3", None): 3, ("3", "7"): 3, (None, "7"): 7, ("x", "0"): usable_cores()}
    for values, cores in expected.items():
        for name, value in zip(("NUMBA_NUM_THREADS", "OMP_NUM_THREADS"), values, strict=True):
            monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
        assert threads.cores.__wrapped__() == cores
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)


@pytest.mark.parametrize("already", [{}, {"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "active"}])
def test_importing_fedpaq_shortens_the_wait_of_torch_s_threads_unless_the_user_has_said(already):
    names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    code = f"import fedpaq, os; print({{name: os.environ[name] for name in {names} if name in os.environ}})"
    environment = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**environment, **already}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(already or {"GOMP_SPINCOUNT": "2000"})
