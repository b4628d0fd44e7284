"""Write the tables of docs/quantizers.md and docs/theory.md that come from benchmarks/results/*.json.

python scripts/quantizer_tables.py
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from performance_page import RESULTS, ROOT, table

DOCS = ROOT / "docs"
Results = dict[str, Any]


def limits(results: Results) -> str:
    """Return error over the limit at each rate, for Gaussian vectors of three sizes."""
    rates = list(results["ideal_over_limit"])
    header = ("p, draws", *(f"{float(rate):g} bits" for rate in rates))
    rows = [("best scalar quantizer", *(f"{value:.2f}" for value in results["ideal_over_limit"].values()))]
    for dimension, found in results["sizes"].items():
        over = (f"{point['over_limit']:.2f}" for point in found["points"])
        rows.append((f"{int(dimension):,}, {found['draws']}", *over))
    peer = results["vectors"]["Gaussian"]["lines"]["EDEN (DRIVE at one bit)"]
    rows.append(("EDEN, 92,027", *(f"{point['over_limit']:.2f}" for point in peer)))
    return table(header, rows)


def real_updates(results: Results) -> str:
    """Return the error on real updates at LowPrecision's bytes."""
    rows = []
    for name, panel in results["vectors"].items():
        for row in panel.get("against_low_precision", ()):
            rows.append(
                (
                    f"{name}, p = {panel['dimension']:,}",
                    row.get("round", 10),
                    row["levels"],
                    f"{row['low_precision_bytes']:,.0f}",
                    f"{row['low_precision_nmse']:.3g}",
                    f"{row['rotated_bytes']:,.0f}",
                    f"{row['rotated_nmse']:.3g}",
                    f"{row['ratio']:.2f}",
                )
            )
    header = ("update", "round", "s", "bytes", "error", "bytes of `Rotated`", "its error", "ratio")
    return table(header, rows)


def one_block(results: Results) -> str:
    """Return the losses of training with and without blocks, beside what they are compared with."""
    rows = []
    for row in results["rows"]:
        ratio = f"{row['ratio']:.3f} [{row['low']:.3f}, {row['high']:.3f}]" if "ratio" in row else "-"
        beside = row.get("beside", "-").replace("none", "float32")
        name = f"`{row['quantizer']}`" if row["quantizer"] != "none" else "float32"
        loss = f"{row['loss']:.4g}"
        rows.append((row["problem"], name, f"{row['bytes_an_upload']:,.0f}", row["step_size"], loss, beside, ratio))
    return table(("problem", "quantizer", "bytes", "step size", "loss", "compared with", "ratio of losses"), rows)


def harm(results: Results) -> str:
    """Return error and harm of each quantizer."""
    rows = []
    for name, found in results["problems"].items():
        for row in found["quantizers"]:
            weighed = f"{row['harm']:.1f} ± {row['standard_error']:.1f}"
            rows.append((name, f"`{row['quantizer']}`", f"{row['bytes']:,.0f}", f"{row['error']:.1f}", weighed))
    return table(("problem", "quantizer", "bytes", "error", "harm"), rows)


def allocations(results: Results) -> str:
    """Return the least harm that any allocation can have over that of an even error, a column a grouping."""
    found = {
        name: {row["groups"]: f"{row['least_over_even']:.2f} ({row['count']:,})" for row in case["groupings"]}
        for name, case in results["problems"].items()
    }
    columns = max(found.values(), key=len)
    rows = [(name, *(cells.get(column, "-") for column in columns)) for name, cells in found.items()]
    return table(("problem", *columns), rows)


def bias(results: Results) -> str:
    """Return the largest deviations of the mean, a row a vector."""
    vectors: dict[tuple[str, int], list[Results]] = {}
    for row in results["rows"]:
        vectors.setdefault((row["vector"], row["dimension"]), []).append(row)
    rows = []
    for (name, dimension), found in vectors.items():
        finest = min(found, key=lambda row: row["resolution"] or 1.0)
        rows.append(
            (
                f"{name}, p = {dimension:,}",
                len(found),
                f"{max(row['along_in_standard_errors'] for row in found):.1f}",
                f"{max(row['norm_in_standard_errors'] for row in found):.1f}",
                f"{finest['resolution']:.0e}",
            )
        )
    header = ("vector", "settings", "along x", "in norm", "finest resolution, of the norm")
    return table(header, rows)


TABLES: list[tuple[str, str, str, Callable[[Results], str]]] = [
    ("quantizers.md", "limits", "rate_distortion", limits),
    ("quantizers.md", "real updates", "rate_distortion", real_updates),
    ("quantizers.md", "one block", "one_block", one_block),
    ("quantizers.md", "harm", "harm", harm),
    ("quantizers.md", "allocations", "harm", allocations),
    ("theory.md", "bias", "rotated_bias", bias),
]


def filled(text: str, name: str, made: str) -> str:
    """Return a page with the table between its two comments."""
    start, end = f"<!-- table: {name} -->", f"<!-- end of table: {name} -->"
    pattern = re.compile(f"{re.escape(start)}.*?{re.escape(end)}", re.DOTALL)
    if not pattern.search(text):
        raise SystemExit(f"the page has no place for the table {name!r}")
    return pattern.sub(lambda _: f"{start}\n\n{made}\n\n{end}", text)


def pages() -> dict[str, str]:
    """Return each page with its tables."""
    found: dict[str, str] = {}
    for page, name, benchmark, make in TABLES:
        results = json.loads((RESULTS / f"{benchmark}.json").read_text())
        found[page] = filled(found.get(page) or (DOCS / page).read_text(), name, make(results))
    return found


if __name__ == "__main__":
    for page, text in pages().items():
        (DOCS / page).write_text(text)
        print(f"written: docs/{page}")
