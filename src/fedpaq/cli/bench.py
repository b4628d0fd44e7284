"""``fedpaq bench``: quick measurements on this machine."""

from __future__ import annotations

import json as json_module
import statistics
import time
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedpaq.cli.options import AsJson

app = typer.Typer(help="Measure fedpaq on this machine.\n\nExample: fedpaq bench codec", no_args_is_help=True)
SIZES = (785, 92_027, 1_000_000, 4_000_000)


@app.callback()
def _bench() -> None:
    """Keep ``codec`` a word of its own while it is the only benchmark."""


@app.command("codec")
def bench_codec(
    dimensions: Annotated[
        list[int] | None, typer.Option("--dimension", "-p", help="Coordinates; repeatable.", min=1)
    ] = None,
    levels: Annotated[
        list[int] | None,
        typer.Option("--levels", "-s", help="Levels; repeatable; 0: ceil(sqrt(dimension)).", min=0, max=32767),
    ] = None,
    repeats: Annotated[int, typer.Option(help="Timings of each, of which the median counts.", min=1)] = 7,
    json: AsJson = False,
) -> None:
    """Print payload size against the entropy, and speed against memcpy, on Gaussian updates.

    Times are ratios to np.copyto of the same float32 vector on one core: 0.1 is a tenth of its speed.
    Below a million coordinates memcpy runs in cache.

    Example: fedpaq bench codec -p 1000000 -s 1 -s 0
    """
    rows = [measure(p, s, repeats) for p in dimensions or SIZES for s in levels or (1, 10, 0)]
    if json:
        typer.echo(json_module.dumps(rows, indent=1))
        return
    table = Table(title="payloads of Gaussian updates; speed relative to memcpy")
    for heading in ("p", "s", "payload B", "/ entropy", "bits / p", "encode", "decode", "add up"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*(_text(row[name]) for name in COLUMNS))
    Console().print(table)


COLUMNS = (
    "dimension",
    "levels",
    "payload_bytes",
    "payload_over_entropy",
    "bits_per_coordinate",
    "quantize_and_encode_over_memcpy",
    "decode_to_float32_over_memcpy",
    "accumulate_over_memcpy",
)


def measure(dimension: int, levels: int, repeats: int) -> dict[str, Any]:
    """Measure one Gaussian update; check first that it survives the wire."""
    import math

    import numpy as np

    from fedpaq import Key, LowPrecision, accumulate, codec, decode, encode

    levels = levels or math.isqrt(dimension - 1) + 1
    update = np.random.default_rng(0).standard_normal(dimension).astype(np.float32)
    copy, total = np.empty_like(update), np.zeros(dimension)
    quantizer, key = LowPrecision(levels=levels), Key(seed=0)
    message = quantizer.quantize(update, key=key)
    payload = encode(message)
    if decode(payload, dimension=dimension) != message:
        raise RuntimeError(f"dimension={dimension}, levels={levels}: the payload does not decode; report a bug")
    memcpy = _median_seconds(lambda: np.copyto(copy, update), repeats)
    entropy = codec.order0_entropy(message.signed_levels)
    work = {
        "quantize_and_encode": lambda: encode(quantizer.quantize(update, key=key)),
        "decode_to_float32": lambda: decode(payload, dimension=dimension).dequantize(),
        "accumulate": lambda: accumulate(payload, total),
    }
    seconds = {name: _median_seconds(function, repeats) for name, function in work.items()}
    return {
        "dimension": dimension,
        "levels": levels,
        "payload_bytes": len(payload),
        "payload_over_entropy": 8 * len(payload) / entropy if entropy else None,
        "bits_per_coordinate": 8 * len(payload) / dimension,
        "memcpy_seconds": memcpy,
        **{f"{name}_seconds": value for name, value in seconds.items()},
        **{f"{name}_over_memcpy": memcpy / value for name, value in seconds.items()},
    }


def _median_seconds(function: Callable[[], Any], repeats: int) -> float:
    function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"
