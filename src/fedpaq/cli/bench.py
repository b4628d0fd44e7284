"""``fedpaq bench``: quick measurements on this machine."""

import statistics
import timeit
from collections.abc import Callable
from typing import Annotated, Any

import typer

from fedpaq.cli.options import AsJson
from fedpaq.cli.printing import show, table

app = typer.Typer(help="Measure fedpaq on this machine.\n\nExample: fedpaq bench codec", no_args_is_help=True)
SIZES = (785, 92_027, 1_000_000, 4_000_000)
COLUMNS = {
    ">payload B": "payload_bytes",
    ">/ entropy": "payload_over_entropy",
    ">bits / p": "bits_per_coordinate",
    ">encode": "quantize_and_encode_over_memcpy",
    ">decode": "decode_to_float32_over_memcpy",
    ">add up": "accumulate_over_memcpy",
}


@app.callback()
def _bench() -> None:
    """Keep ``codec`` a word of its own as long as it is the only benchmark."""


@app.command("codec")
def bench_codec(
    dimensions: Annotated[
        list[int] | None, typer.Option("--dimension", "-p", help="Coordinates of an update; repeatable.", min=1)
    ] = None,
    levels: Annotated[
        list[int] | None,
        typer.Option(
            "--levels",
            "-s",
            help="Quantization levels; 0 stands for ceil(sqrt(dimension)); repeatable.",
            min=0,
            max=32767,
        ),
    ] = None,
    quantizers: Annotated[
        list[str] | None,
        typer.Option("--quantizer", metavar="TEXT", help="Measure this quantizer, e.g. rotated:0.1; repeatable."),
    ] = None,
    repeats: Annotated[int, typer.Option(help="Timings per row; the median is shown.", min=1)] = 7,
    json: AsJson = False,
) -> None:
    """Compare payload sizes with the entropy, and speeds with memcpy, on Gaussian updates.

    Speeds are relative to np.copyto of the same float32 vector on one core: 0.1 is a tenth of its
    speed. Below a million coordinates memcpy runs in cache.

    Example: fedpaq bench codec -p 1000000 -s 1 -s 0 --quantizer rotated:0.1
    """
    texts = [*(quantizers or []), *(f"low-precision:{s}" for s in levels or (() if quantizers else (1, 10, 0)))]
    rows = [measure(p, text, repeats) for p in dimensions or SIZES for text in texts]
    columns = {"quantizer": "quantizer"} if quantizers else {">s": "levels"}
    columns = {">p": "dimension", **columns, **COLUMNS}
    cells = ([_text(row[name]) for name in columns.values()] for row in rows)
    title = "Payloads of Gaussian updates; speed relative to memcpy"
    show(rows, json, lambda: [table(columns, cells, title=title)])


def measure(dimension: int, text: str, repeats: int) -> dict[str, Any]:
    """Measure one Gaussian update, after a check that its payload decodes to the same message."""
    import math

    import numpy as np

    from fedpaq import Key, accumulate, codec, decode, encode, quantizers

    if text == "low-precision:0":
        text = f"low-precision:{math.isqrt(dimension - 1) + 1}"
    update = np.random.default_rng(0).standard_normal(dimension).astype(np.float32)
    copy, total = np.empty_like(update), np.zeros(dimension)
    quantizer, key = quantizers.parse(text), Key(seed=0)
    message = quantizer.quantize(update, key=key)
    payload = encode(message)
    if decode(payload, dimension=dimension, key=key) != message:
        raise RuntimeError(f"dimension={dimension}, quantizer={text}: the payload does not decode; report a bug")
    memcpy = _median_seconds(lambda: np.copyto(copy, update), repeats)
    levels = getattr(message, "signed_levels", None)
    entropy = None if levels is None else codec.order0_entropy(levels)
    work = {
        "quantize_and_encode": lambda: encode(quantizer.quantize(update, key=key)),
        "decode_to_float32": lambda: decode(payload, dimension=dimension, key=key).dequantize(),
        "accumulate": lambda: accumulate(payload, total, key=key),
    }
    seconds = {name: _median_seconds(function, repeats) for name, function in work.items()}
    return {
        "dimension": dimension,
        "quantizer": text,
        "levels": getattr(quantizer, "levels", None),
        "payload_bytes": len(payload),
        "payload_over_entropy": 8 * len(payload) / entropy if entropy else None,
        "bits_per_coordinate": 8 * len(payload) / dimension,
        "memcpy_seconds": memcpy,
        **{f"{name}_seconds": value for name, value in seconds.items()},
        **{f"{name}_over_memcpy": memcpy / value for name, value in seconds.items()},
    }


def _median_seconds(function: Callable[[], Any], repeats: int) -> float:
    function()
    return statistics.median(timeit.repeat(function, number=1, repeat=repeats))


def _text(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"
