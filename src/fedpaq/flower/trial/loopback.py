"""A real deployment on this machine: SuperLink and SuperNodes as processes, talking over 127.0.0.1.

    with Loopback(folder, num_supernodes=4, tls=True) as deployment:
        deployment.run("examples/flower-mnist", num_rounds=3)

Every process is started here and ended here, with all the processes it has started itself. Nothing
is left behind, even after an error; a watchdog ends everything if this process is killed. Logs stay
in ``folder``. Nothing outside this machine is contacted.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from fedpaq.errors import ConfigError
from fedpaq.flower.trial import watchdog
from fedpaq.flower.trial.certificates import write_certificates, write_node_key

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "PYTHONUNBUFFERED": "1",
}
START_SECONDS = 60.0


class Loopback:
    """A SuperLink and ``num_supernodes`` SuperNodes; node i has ``partition-id=i``.

    With ``tls`` every connection is encrypted and only SuperNodes with a registered key may join.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        num_supernodes: int,
        tls: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = Path(folder).resolve()
        self.num_supernodes, self.tls = num_supernodes, tls
        self._home = self.folder / "flwr-home"
        self.port = free_port()
        self.fleet_port = self.port  # where SuperNodes connect; a proxy may stand in between
        self._processes: dict[str, psutil.Popen] = {}
        self._started: set[str] = set()  # names of processes whose log is this deployment's
        self._runs = 0
        bin_folder = str(Path(sys.executable).parent)  # Flower starts its own helpers by name
        self._environment = {
            **os.environ,
            **QUIET,
            "FLWR_HOME": str(self._home),
            "PATH": bin_folder + os.pathsep + os.environ.get("PATH", ""),
            **(environment or {}),
        }

    def __enter__(self) -> Loopback:
        self._watchdog = self._watch()
        atexit.register(self.stop)
        try:
            self._prepare()
            self.start_superlink()
            for number in range(self.num_supernodes):
                self.start_supernode(number)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()
        atexit.unregister(self.stop)

    def start_superlink(self) -> None:
        """Start the SuperLink and wait until it listens; registrations survive a restart."""
        command = ["flower-superlink", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--disable-runtime-dependency-installation", "--database", str(self.folder / "link.db")]
        if self.tls:
            command += ["--ssl-ca-certfile", str(self.folder / "ca.crt"), "--enable-supernode-auth"]
            command += ["--ssl-certfile", str(self.folder / "server.crt")]
            command += ["--ssl-keyfile", str(self.folder / "server.key")]
        else:
            command += ["--insecure"]
        self._start("superlink", command)
        self._await_port("superlink", self.port)

    def start_supernode(self, number: int) -> None:
        """Start SuperNode ``number``; with TLS its key is made and registered first."""
        name = f"supernode-{number}"
        command = ["flower-supernode", "--superlink", f"127.0.0.1:{self.fleet_port}"]
        command += ["--host", "127.0.0.1", "--port", str(free_port())]
        command += ["--node-config", f"partition-id={number} num-partitions={self.num_supernodes}"]
        if self.tls:
            private, public = self.folder / name, self.folder / f"{name}.pub"
            if not private.exists():
                write_node_key(self.folder, name)
                register = ["supernode", "register", str(public), "loopback"]
                self._flwr(register, f"register-{number}", 2 * START_SECONDS)
            command += ["--root-certificates", str(self.folder / "ca.crt")]
            command += ["--auth-supernode-private-key", str(private)]
        else:
            command += ["--insecure"]
        self._start(name, command)

    def run(self, app: str | os.PathLike[str], *, timeout: float = 600.0, **run_config: Any) -> str:
        """Run a Flower app to its end and return its log; underscores in settings stand for dashes."""
        self._runs += 1
        return self._flwr(self._run_command(app, run_config), f"run-{self._runs}", timeout)

    def start_run(self, app: str | os.PathLike[str], **run_config: Any) -> psutil.Popen:
        """Start a Flower app and return the process that streams its log, without waiting for it."""
        self._runs += 1
        return self._start(f"run-{self._runs}", ["flwr", *self._run_command(app, run_config)])

    def status(self, timeout: float = 600.0) -> str:
        """Return how the last run ended, e.g. ``finished:completed``; wait for it if need be."""
        until = time.monotonic() + timeout
        while True:
            text = self._flwr(["ls", "loopback", "--limit", "1", "--format", "json"], "status", timeout)
            found = re.findall(r'"status": "([a-z:]+)"', text)
            if found and (found[-1].startswith("finished") or time.monotonic() >= until):
                return str(found[-1])
            time.sleep(0.5)

    def kill(self, name: str) -> None:
        """End ``superlink``, ``supernode-0``, ... and all it started at once, as a power cut would."""
        watchdog.kill(watchdog.family(self._processes.pop(name)))

    def log(self, name: str) -> str:
        """Return what a process has written so far."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def stop(self) -> None:
        """End every process: politely, then by force."""
        watchdog.end([one for process in self._processes.values() for one in watchdog.family(process)])
        self._processes.clear()
        if self._watchdog.poll() is None:
            self._watchdog.communicate()  # closes its input: it ends what may have hidden, and then itself

    def _watch(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "fedpaq.flower.trial.watchdog", str(self._home)]
        paths = [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        return subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, start_new_session=True)

    def _prepare(self) -> None:
        self._home.mkdir(parents=True, exist_ok=True)
        trust = "insecure = true"
        if self.tls:
            write_certificates(self.folder)
            trust = f"root-certificates = {json.dumps(str(self.folder / 'ca.crt'))}"
        address = f'address = "127.0.0.1:{self.port}"'
        lines = ["[superlink]", 'default = "loopback"', "[superlink.loopback]", address, trust]
        (self._home / "config.toml").write_text("\n".join(lines) + "\n")

    def _run_command(self, app: str | os.PathLike[str], run_config: Mapping[str, Any]) -> list[str]:
        settings = " ".join(f"{key.replace('_', '-')}={json.dumps(value)}" for key, value in run_config.items())
        command = ["run", str(Path(app).resolve()), "loopback", "--stream"]
        return command + (["--run-config", settings] if settings else [])

    def _flwr(self, arguments: list[str], name: str, timeout: float) -> str:
        process = self._start(name, ["flwr", *arguments])
        try:
            process.wait(timeout)
        except psutil.TimeoutExpired as error:
            raise TimeoutError(f"{name} took more than {timeout:g} s; see {name}.log") from error
        del self._processes[name]
        if process.returncode:
            raise ConfigError(f"flwr {arguments[0]} failed:\n{self.log(name)}")
        return self.log(name)

    def _start(self, name: str, command: list[str]) -> psutil.Popen:
        # A restarted process continues its log; another deployment in this folder begins a new one.
        mode = "ab" if name in self._started else "wb"
        self._started.add(name)
        with open(self.folder / f"{name}.log", mode) as log:
            process = psutil.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=self._environment,
                cwd=self.folder,
            )
        self._processes[name] = process
        return process

    def _await_port(self, name: str, port: int) -> None:
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until and self._processes[name].poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
                return
            time.sleep(0.1)
        raise ConfigError(f"{name} did not start:\n{self.log(name)}")


def free_port() -> int:
    """Return a port of 127.0.0.1 that is free now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
