"""The command line: one verb per file, each parses and then calls the library."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from fedpaq import __version__
from fedpaq.cli import bench, data
from fedpaq.cli.doctor import doctor
from fedpaq.cli.inspect import inspect
from fedpaq.cli.plan import plan
from fedpaq.cli.reproduce import reproduce
from fedpaq.cli.run import run
from fedpaq.cli.theory import theory
from fedpaq.errors import FedPAQError

app = typer.Typer(
    name="fedpaq",
    help="Federated learning with tiny uploads: periodic averaging, partial participation, quantization.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
_options = {"debug": False}


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedpaq {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    _options["debug"] = debug


app.command("run")(run)
app.command("reproduce")(reproduce)
app.command("plan")(plan)
app.command("theory")(theory)
app.command("inspect")(inspect)
app.command("doctor")(doctor)
app.add_typer(data.app, name="data")
app.add_typer(bench.app, name="bench")


def main() -> None:
    """Run the command line; an expected error is one line on standard error and exit code 2."""
    try:
        app()
    except FedPAQError as error:
        if _options["debug"]:
            raise
        print(f"fedpaq: error: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:  # a full disk, a folder that cannot be written
        if _options["debug"]:
            raise
        print(f"fedpaq: error: {error.filename or 'file'}: {error.strerror or error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("fedpaq: interrupted", file=sys.stderr)
        sys.exit(130)
