"""Watchdog: the processes of a deployment are found and ended."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from fedpaq.flower.trial import watchdog

pytestmark = pytest.mark.flower

STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"


def ids(processes):
    return sorted(process.pid for process in processes)


@pytest.fixture
def parent_and_child():
    """A process with a child, both asleep, and their ``FLWR_HOME``."""
    code = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid, flush=True)\nchild.wait()"
    )
    home = f"/nowhere/{os.getpid()}"
    with psutil.Popen(
        [sys.executable, "-S", "-c", code], stdout=subprocess.PIPE, env={**os.environ, "FLWR_HOME": home}
    ) as parent:
        child = psutil.Process(int(parent.stdout.readline()))
        yield parent, child, home
        watchdog.kill([child, parent])


def test_the_processes_of_a_deployment_are_found_and_ended_by_its_home(parent_and_child):
    parent, child, home = parent_and_child
    assert watchdog.family(parent) == [parent, child] and watchdog.family(child) == [child]
    assert ids(watchdog.processes_of(home)) == ids([parent, child])
    assert watchdog.processes_of(home + "/other") == watchdog.processes_of(home[:-1]) == []
    watchdog.end_processes_of(home)
    assert watchdog.processes_of(home) == []


def test_a_process_that_ignores_the_polite_request_is_ended_by_force():
    with psutil.Popen([sys.executable, "-S", "-c", STUBBORN], stdout=subprocess.PIPE) as stubborn:
        stubborn.stdout.readline()
        watchdog.end([stubborn], seconds=0.2)
        assert not stubborn.is_running()


def test_signalling_a_process_that_is_gone_is_no_error():
    with psutil.Popen([sys.executable, "-S", "-c", ""]) as short:
        pass
    watchdog.end([short])
    watchdog.kill([short])
    assert watchdog.family(short) in ([], [short]) and not short.is_running()
