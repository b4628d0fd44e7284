"""The command line: one verb per file, each parses and then calls the library."""

import gc
import re
import sys
import warnings
from typing import Annotated, Any

import typer

from fedpaq import __version__
from fedpaq.cli import bench, data
from fedpaq.cli.doctor import doctor
from fedpaq.cli.inspect import inspect
from fedpaq.cli.interrupts import INTERRUPTED
from fedpaq.cli.plan import plan
from fedpaq.cli.reproduce import reproduce
from fedpaq.cli.run import run
from fedpaq.cli.theory import theory
from fedpaq.errors import FedPAQError

app = typer.Typer(
    name="fedpaq",
    help="Federated learning with tiny uploads: periodic averaging, partial participation, quantization."
    "\n\nExample: fedpaq run mnist-logistic",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
_options = {"debug": False}
UsageError: Any = typer.BadParameter.__base__  # click's, or that of the click inside newer versions of typer


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
    warnings.formatwarning = lambda message, *place, **line: f"fedpaq: warning: {message}\n"
    gc.set_threshold(50_000)  # importing torch and numba otherwise looks for garbage 440 times, for 0.2 s
    try:
        code = app(prog_name="fedpaq", standalone_mode=False) or 0
    except UsageError as error:
        code = _refuse(_advice(error))
    except FedPAQError as error:
        code = _refuse(str(error))
    except MemoryError as error:  # often without a word of its own
        code = _refuse(f"out of memory; choose smaller sizes{f' ({error})' if str(error) else ''}")
    except OSError as error:  # a full disk, a folder that cannot be written
        code = _refuse(f"{error.filename or 'file'}: {error.strerror or error}")
    if code == INTERRUPTED:  # typer's word for a KeyboardInterrupt
        print("fedpaq: interrupted", file=sys.stderr)
    sys.exit(code)


def _refuse(message: str) -> int:
    """Print what is wrong, unless that has been said; called while the error is handled."""
    if _options["debug"]:
        raise
    if message:
        print(f"fedpaq: error: {message}", file=sys.stderr)
    return 2


def _advice(error: Any) -> str:
    """Return typer's complaint as one line; a missing command has shown the help and has none."""
    message = re.sub(r"(Did you mean [^?]*\?)( \1)+", r"\1", " ".join(error.format_message().split()))
    path = error.ctx.command_path if error.ctx else "fedpaq"
    return f"{message.rstrip('.')}; see {path} --help" if message else ""
