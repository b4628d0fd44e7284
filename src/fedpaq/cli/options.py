"""Options that several verbs share, and what they mean together."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedpaq.cli.units import parse_bandwidth
from fedpaq.errors import ConfigError

if TYPE_CHECKING:
    from fedpaq import CostModel
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
    typer.Option(
        "--quantizer", metavar="TEXT", help="How updates are quantized, e.g. low-precision:4, rotated:0.1 or none."
    ),
]
BucketSize = Annotated[
    int | None, typer.Option(help="With --levels: coordinates that share a norm. Default: all of them.")
]
Levels = Annotated[
    int | None,
    typer.Option("--levels", "-s", help="s: short for --quantizer low-precision:s; 0 sends float32. Default: 1."),
]
DownlinkText = Annotated[
    str,
    typer.Option("--downlink", metavar="TEXT", help="How the model is sent: dense, or coded changes, e.g. rotated:1."),
]
BatchSize = Annotated[int, typer.Option("--batch-size", "-B", help="B: samples per step.")]
NumClients = Annotated[int, typer.Option("--num-clients", "-n", help="n: clients in all.")]
DataSeed = Annotated[int, typer.Option("--seed", help="Fixes the data split and the initial weights.")]
Bandwidth = Annotated[
    str | None, typer.Option(help="Uplink that the clients of a round share, e.g. 1Mbit/s; instead of --ratio.")
]
DownlinkBandwidth = Annotated[
    str | None,
    typer.Option(help="Downlink that the clients of a round share, e.g. 10Mbit/s. Default: downloads are free."),
]
StepSeconds = Annotated[
    float | None, typer.Option(help="Mean seconds that a client takes for one local step. Default: 0.05.")
]
Straggler = Annotated[float, typer.Option(help="Share of a step's time that varies from client to client, up to 1.")]
RoundSeconds = Annotated[float, typer.Option(help="Fixed seconds added to every round: start-up, latency, evaluation.")]
OwnUplinks = Annotated[bool, typer.Option("--own-uplinks", help="Each client has an uplink of --bandwidth.")]
Broadcast = Annotated[
    bool, typer.Option("--broadcast", help="The largest download of a round is charged once, not all of them.")
]
SlowShare = Annotated[float, typer.Option(help="Share of the clients that are slow in every round, 0 to 1.")]
SlowFactor = Annotated[float, typer.Option(help="How many times as long the slow clients compute.")]
STEP_SECONDS = 0.05
RATIO = "Time to upload the model as float32, divided by the mean time of one gradient."
DataDir = Annotated[
    Path | None, typer.Option(envvar="FEDPAQ_DATA", help="Folder with .npz files or the datasets' official files.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]

PICTURES = (".png", ".svg", ".pdf")
NETWORK = (  # the options that price a run, by the names of ``choose_cost_model``
    "bandwidth",
    "ratio",
    "step_seconds",
    "straggler",
    "downlink_bandwidth",
    "round_seconds",
    "own_uplinks",
    "broadcast",
    "slow_share",
    "slow_factor",
)
PARTNERS = {  # what an option needs beside it to have an effect
    "broadcast": "downlink_bandwidth",
    "slow_share": "slow_factor",
    "slow_factor": "slow_share",
    "checkpoint_every": "checkpoint",
    "resume": "checkpoint",
}


def given(context: typer.Context, names: Iterable[str]) -> dict[str, Any]:
    """Return the options of these names that were not left at their defaults, with their values."""
    sources = {name: context.get_parameter_source(name) for name in names}
    set_to = context.params
    return {name: set_to[name] for name, source in sources.items() if source is not None and source.name != "DEFAULT"}


def require_partners(context: typer.Context) -> None:
    """Raise ConfigError if an option was given without the one that it needs to have an effect."""
    for name, value in given(context, PARTNERS).items():
        partner = PARTNERS[name]
        if not given(context, [partner]):
            raise ConfigError(f"{name}={value} has no effect without {partner}; add {flag(partner)}, or leave it out")


def require_absent(context: typer.Context, names: Iterable[str], beside: str) -> None:
    """Raise ConfigError if an option was given that has no effect beside another."""
    for name, value in given(context, names).items():
        raise ConfigError(f"{name}={value} has no effect with {beside}; leave it out")


def flag(name: str) -> str:
    """Return how a parameter is written on the command line.

    >>> flag("slow_share")
    '--slow-share'
    """
    return f"--{name.replace('_', '-')}"


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
    if levels == 0 and bucket_size is not None:
        raise ConfigError(f"bucket_size={bucket_size} has no effect with levels=0, which sends float32; leave it out")
    if text is None:
        bucket = "" if bucket_size is None else f",bucket_size={bucket_size}"
        text = "none" if levels == 0 else f"low-precision:{1 if levels is None else levels}{bucket}"
    quantizer: Quantizer = quantizers.parse(text)
    return quantizer


def cost_model_of(context: typer.Context, **others: Any) -> CostModel:
    """Return the cost model of a verb's ``NETWORK`` options; ``others`` replace or add to them.

    The signature of the verb lists them. One that has no effect is refused, see ``PARTNERS``.
    """
    require_partners(context)
    values = {name: context.params[name] for name in (*NETWORK, "batch_size")}
    return choose_cost_model(**{**values, **others})


def choose_cost_model(
    *,
    ratio: float | None,
    bandwidth: str | None,
    batch_size: int,
    step_seconds: float | None = None,
    straggler: float = 0.5,
    downlink_bandwidth: str | None = None,
    round_seconds: float = 0.0,
    own_uplinks: bool = False,
    broadcast: bool = False,
    slow_share: float = 0.0,
    slow_factor: float = 1.0,
    accounting: str = "payload",
) -> CostModel:
    """Return the cost model of these options; a step's mean time is split into a fixed and a random part.

    A ratio alone has one gradient as its unit of time. A time or rate beside it makes that seconds.

    >>> choose_cost_model(ratio=100, bandwidth=None, batch_size=10).shift
    0.5
    >>> choose_cost_model(ratio=100, bandwidth=None, batch_size=10, round_seconds=5.0).shift
    0.0025
    """
    from fedpaq import CostModel
    from fedpaq.config import require_int, require_positive

    if (bandwidth is None) == (ratio is None):
        raise ConfigError(f"bandwidth={bandwidth} and ratio={ratio}: give exactly one, e.g. --bandwidth 1Mbit/s")
    if step_seconds is not None:
        require_positive("step_seconds", step_seconds)
    require_int("batch_size", batch_size, 1)
    if not 0 < straggler <= 1:
        raise ConfigError(f"straggler={straggler} is not a share; choose above 0 and up to 1")
    is_timed = bandwidth is not None or downlink_bandwidth is not None or round_seconds > 0
    gradient = 1.0
    if is_timed or step_seconds is not None:
        gradient = (STEP_SECONDS if step_seconds is None else step_seconds) / batch_size
    return CostModel(
        bandwidth=None if bandwidth is None else parse_bandwidth(bandwidth),
        ratio=ratio,
        shift=(1 - straggler) * gradient,
        scale=1 / (straggler * gradient),
        accounting=accounting,
        downlink_bandwidth=None
        if downlink_bandwidth is None
        else parse_bandwidth(downlink_bandwidth, "downlink_bandwidth"),
        round_seconds=round_seconds,
        shared_uplink=not own_uplinks,
        shared_downlink=not broadcast,
        slow_share=slow_share,
        slow_factor=slow_factor,
    )


def gradient_prices(
    downlink_bandwidth: str | None, round_seconds: float, step_seconds: float | None, batch_size: int
) -> dict[str, Any]:
    """Return downlink and round seconds in units of one mean gradient, as a model made from a ratio has them.

    >>> gradient_prices("10Mbit/s", 5.0, 0.05, 10)
    {'downlink_bandwidth': 50000.0, 'round_seconds': 1000.0}
    """
    model = choose_cost_model(
        ratio=1.0,
        bandwidth=None,
        batch_size=batch_size,
        step_seconds=step_seconds,
        downlink_bandwidth=downlink_bandwidth,
        round_seconds=round_seconds,
    )
    gradient, down = model.shift + 1 / model.scale, model.downlink_bandwidth
    return {"downlink_bandwidth": None if down is None else down * gradient, "round_seconds": round_seconds / gradient}


def require_file(name: str, path: Path | None) -> None:
    """Raise ConfigError, before any work, unless ``path`` can be a file: its folder exists, and it is none itself."""
    if path is None:
        return
    if path.is_dir():
        raise ConfigError(f"{name}={str(path)!r} is a folder; name a file in it")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"{name}={str(path)!r} needs the folder {str(path.parent)!r}; create it first")


def require_picture(path: Path, *, drawn: bool, advice: str) -> None:
    """Raise ConfigError, before any work, unless a picture will be drawn and ``path`` can hold it."""
    if not drawn:
        raise ConfigError(f"plot={str(path)!r} cannot be drawn; {advice}")
    if path.suffix.lower() not in PICTURES:
        raise ConfigError(f"plot={str(path)!r} is not a picture; choose FILE{', FILE'.join(PICTURES)}")
    require_file("plot", path)
