"""``fedpaq inspect``: what a payload holds, and how close its size is to its entropy."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedpaq.cli.options import AsJson
from fedpaq.cli.printing import show, table


def inspect(file: Annotated[Path, typer.Argument(metavar="FILE", dir_okay=False)], json: AsJson = False) -> None:
    """Show a payload's header, density, bits per coordinate and entropy.

    FILE holds the bytes that fedpaq.encode returned.

    Example: fedpaq inspect update.fpq --json
    """
    report = examine(file.read_bytes())
    rows = ((name.replace("_", " "), _text(value)) for name, value in report.items())
    show(report, json, lambda: [table(("", ""), rows, title=f"payload {file.name}")])


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
    if isinstance(value, float):
        return f"{value:,.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}"
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
