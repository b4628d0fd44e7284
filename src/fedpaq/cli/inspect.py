"""``fedpaq inspect``: what a payload says, and how close it comes to its entropy."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedpaq.cli.options import AsJson


def inspect(
    file: Annotated[Path, typer.Argument(help="A payload, as fedpaq.encode wrote it.", dir_okay=False)],
    json: AsJson = False,
) -> None:
    """Show a payload's header, density, bits per coordinate and entropy.

    Example: fedpaq inspect update.fpq --json
    """
    report = examine(file.read_bytes())
    if json:
        typer.echo(json_module.dumps(report, indent=1))
        return
    table = Table(title=f"payload {file.name}", show_header=False)
    for name, value in report.items():
        table.add_row(name.replace("_", " "), f"{value:,}" if isinstance(value, int) else _text(value))
    Console().print(table)


def examine(payload: bytes) -> dict[str, Any]:
    """Return what header and body of a payload say; raises WireFormatError."""
    from fedpaq.codec import code_by_id, decode, read_header

    header = read_header(payload)
    return {
        "payload_bytes": len(payload),
        "format_version": header.version,
        "code": header.code_name,
        "dimension": header.dimension,
        **code_by_id(header.code).describe(header, decode(payload)),
        "bits_per_coordinate": 8 * len(payload) / header.dimension,
        "float32_over_payload": 4 * header.dimension / len(payload),
    }


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}"
    return str(value)
