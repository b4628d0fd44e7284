"""Try a Flower app as a real deployment on this machine: ``python -m fedpaq.flower.trial APP --tls``."""

import argparse
import sys
import tempfile
import time
import tomllib
from pathlib import Path

from fedpaq.errors import FedPAQError
from fedpaq.flower.trial.loopback import Loopback


def main() -> None:
    """Start SuperLink and SuperNodes, run the app, show its log, stop everything."""
    arguments = _parse()
    folder = Path(arguments.folder or tempfile.mkdtemp(prefix="fedpaq-loopback-"))
    kind = "TLS and node authentication" if arguments.tls else "no encryption"
    print(f"SuperLink and {arguments.supernodes} SuperNodes on 127.0.0.1, {kind}; logs in {folder}")
    try:
        with Loopback(folder, num_supernodes=arguments.supernodes, tls=arguments.tls) as deployment:
            settings = dict(_setting(text) for text in arguments.run_config)
            status = _follow(deployment, arguments.app, settings)
    except (FedPAQError, TimeoutError) as error:
        sys.exit(f"error: {error}")
    print(f"run {status}; every process is stopped; logs in {folder}")
    sys.exit(0 if status == "finished:completed" else 1)


def _follow(deployment: Loopback, app: str, settings: dict[str, str | int | float]) -> str:
    """Run the app, copying its log to standard output while it grows; return how it ended."""
    process, shown = deployment.start_run(app, **settings), 0
    while True:
        running = process.poll() is None
        text = deployment.log("run-1")
        print(text[shown:], end="", flush=True)
        shown = len(text)
        if not running:
            return deployment.status()
        time.sleep(0.5)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fedpaq.flower.trial", description=__doc__)
    parser.add_argument("app", help="folder of the Flower app (with its pyproject.toml)")
    parser.add_argument("--supernodes", type=int, default=4, metavar="N", help="clients (default: 4)")
    parser.add_argument("--tls", action="store_true", help="encrypt, and admit registered SuperNodes only")
    parser.add_argument("--folder", help="where logs and certificates go (default: a new folder)")
    parser.add_argument(
        "--run-config", nargs="*", default=[], metavar="KEY=VALUE", help="settings of the app's [tool.flwr.app.config]"
    )
    return parser.parse_args()


def _setting(text: str) -> tuple[str, str | int | float]:
    """Return key and value: as TOML where it is, as Flower reads it; else a number such as ``.5``, else the text."""
    key, _, value = text.partition("=")
    for read in (_from_toml, float):
        try:
            return key, read(value)
        except ValueError:
            continue
    return key, value


def _from_toml(text: str) -> str | int | float:
    found = tomllib.loads(f"value = {text}")["value"]
    if not isinstance(found, str | int | float):
        raise ValueError(f"{text} is not a value that a run config can hold")  # a date, a list
    return found


if __name__ == "__main__":
    main()
