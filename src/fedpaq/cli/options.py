"""Options that several verbs share, and what they mean together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedpaq.errors import ConfigError

if TYPE_CHECKING:
    from fedpaq.quantizers import Quantizer

# The docstring of a verb explains its argument: typer 0.20 with click 8.5 drops an argument's own help.
ProblemName = Annotated[str, typer.Argument(metavar="PROBLEM")]
ClientsPerRound = Annotated[int, typer.Option("--clients-per-round", "-r", help="r: clients drawn in each round.")]
LocalSteps = Annotated[
    int, typer.Option("--local-steps", "-t", help="tau: SGD steps that a client takes between uploads.")
]
TotalSteps = Annotated[int, typer.Option("--total-steps", "-T", help="T: local steps in all, a multiple of tau.")]
QuantizerText = Annotated[
    str | None,
    typer.Option("--quantizer", metavar="TEXT", help="How updates are quantized, e.g. low-precision:4 or none."),
]
Levels = Annotated[
    int | None,
    typer.Option("--levels", "-s", help="s: short for --quantizer low-precision:s; 0 sends float32. Default: 1."),
]
BatchSize = Annotated[int, typer.Option("--batch-size", "-B", help="B: samples per step.")]
NumClients = Annotated[int, typer.Option("--num-clients", "-n", help="n: clients in all.")]
DataSeed = Annotated[int, typer.Option("--seed", help="Fixes the data split and the initial weights.")]
Bandwidth = Annotated[
    str | None, typer.Option(help="Uplink that the clients of a round share, e.g. 1Mbit/s; instead of --ratio.")
]
RATIO = typer.Option(help="Time to upload a float32 model over the time of one gradient.")
DataDir = Annotated[
    Path | None, typer.Option(envvar="FEDPAQ_DATA", help="Folder with .npz files or the datasets' official files.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]

PICTURES = (".png", ".svg", ".pdf")


def choose_quantizer(text: str | None, levels: int | None, bucket_size: int | None = None) -> Quantizer:
    """Return the quantizer of --quantizer, or of its short form --levels.

    >>> choose_quantizer(None, None), choose_quantizer(None, 0), choose_quantizer("low-precision:4", None)
    (LowPrecision(levels=1, bucket_size=None), Identity(), LowPrecision(levels=4, bucket_size=None))
    """
    from fedpaq import quantizers

    short = {"levels": levels, "bucket_size": bucket_size}
    given = [f"{name}={value}" for name, value in short.items() if value is not None]
    if text is not None and given:
        raise ConfigError(
            f"quantizer={text!r} and {' and '.join(given)}: give one or the other; "
            "the text can hold both numbers, e.g. low-precision:4,bucket_size=128"
        )
    if text is None:
        bucket = "" if bucket_size is None else f",bucket_size={bucket_size}"
        text = "none" if levels == 0 else f"low-precision:{1 if levels is None else levels}{bucket}"
    quantizer: Quantizer = quantizers.parse(text)
    return quantizer


def require_picture(path: Path, *, drawn: bool, advice: str) -> None:
    """Raise ConfigError, before any work, unless a picture will be drawn and ``path`` can hold it."""
    if not drawn:
        raise ConfigError(f"plot={str(path)!r} cannot be drawn; {advice}")
    if path.suffix.lower() not in PICTURES:
        raise ConfigError(f"plot={str(path)!r} is not a picture; choose FILE{', FILE'.join(PICTURES)}")
