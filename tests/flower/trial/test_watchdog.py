"""Watchdog: the processes of a deployment are found and ended."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fedpaq.flower.trial import loopback, watchdog
from fedpaq.flower.trial.loopback import descendants

pytestmark = pytest.mark.flower


@pytest.fixture
def family():
    """A process with a child, both asleep: (parent id, child id)."""
    code = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid, flush=True)\nchild.wait()"
    )
    home = {"FLWR_HOME": f"/nowhere/{os.getpid()}"}
    with subprocess.Popen(
        [sys.executable, "-S", "-c", code], stdout=subprocess.PIPE, env={**os.environ, **home}
    ) as parent:
        child = int(parent.stdout.readline())
        yield parent.pid, child, home["FLWR_HOME"]
        for pid in (child, parent.pid):
            loopback._signal([pid], loopback.signal.SIGKILL)


def test_the_processes_of_a_deployment_are_found_and_ended_by_its_home(family):
    parent, child, home = family
    assert descendants(parent) == [child] and descendants(child) == []
    assert sorted(watchdog.processes_of(home)) == sorted([parent, child])
    assert watchdog.processes_of(home + "/other") == watchdog.processes_of(home[:-1]) == []
    watchdog.end_processes_of(home)
    assert watchdog.processes_of(home) == []


def test_signalling_a_process_that_is_gone_is_no_error():
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as short:
        pass
    loopback._signal([short.pid], loopback.signal.SIGTERM)
    assert not loopback._alive(short.pid) and loopback._alive(os.getpid())
