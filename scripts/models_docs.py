"""Publish the study of models: copy its trials to docs/figures/models, draw it, fill in docs/models.md.

python scripts/models_docs.py reproduction   # copy the trials that are there, then draw and fill in
python scripts/models_docs.py                # draw and fill in from what was copied before
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from performance_page import ROOT, table

from fedpaq.experiments import Output
from fedpaq.experiments.models import TASKS

PAGE, PUBLISHED = ROOT / "docs" / "models.md", ROOT / "docs" / "figures"
MARKS = {"holds": "✓", "does not hold": "✗"}


def publish(folder: Path) -> None:
    """Copy all trials of a folder that ``fedpaq reproduce models`` made."""
    for path in sorted((folder / "models").glob("*/*.json")):
        target = PUBLISHED / "models" / path.parent.name
        target.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target / path.name)


def summaries() -> list[dict[str, Any]]:
    """Return a summary of each task whose runs were copied."""
    return [study.summary() for study in Output(PUBLISHED).studies()]


def draw() -> None:
    """Draw every task, and write the summaries."""
    (PUBLISHED / "models").mkdir(parents=True, exist_ok=True)
    Output(PUBLISHED).save_studies()
    for path in PUBLISHED.glob("models-*.pdf"):  # no page shows a PDF
        path.unlink()


def sections(found: list[dict[str, Any]]) -> dict[str, str]:
    """Return every generated section of the page by name; a task that was not run says so."""
    by_name = {summary["name"]: summary for summary in found}
    return {name: "\n\n".join(section(by_name[name])) if name in by_name else missing(name) for name in TASKS}


def missing(name: str) -> str:
    """Return what stands in the place of a task that was not run."""
    return f"`{name}` has not been run yet: `fedpaq reproduce models --device cuda`."


def section(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield setting, picture, verdicts and table of a task."""
    yield (
        f"p = {summary['dimension']:,}, n = {summary['num_clients']}, r = {summary['clients_per_round']}, "
        f"τ = {summary['local_steps']}, B = {summary['batch_size']}, {summary['rounds']} rounds, "
        f"{summary['optimizer']}, {summary['precision']}, seeds: {summary['seeds']}.\nData: {summary['source']}."
    )
    if not summary["is_whole"]:
        yield "Some arms have not been run yet."
    yield f"![{summary['title']}](figures/models-{summary['name']}.png)"
    yield table(("claim", "verdict", "measured"), [claim(each) for each in summary["verdicts"]])
    heads = (
        "arm", "step size", "bytes an upload", "times fewer up", "times fewer both ways", summary["measure"],
        f"behind float32 ({summary['unit']})", "training loss",
    )  # fmt: skip
    yield table(heads, [cells(row) for row in summary["rows"]])


def claim(entry: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return a claim, its verdict and its number."""
    numbers = "; ".join(f"{n['mean']:.3g} [{n['low']:.3g}, {n['high']:.3g}]" for n in entry["numbers"])
    return entry["sentence"], f"{MARKS[entry['verdict']]} {entry['verdict']}", numbers or "diverged"


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a row of a task's table."""
    if row["measure"] is None:
        ends = ("diverged",) * 3
    else:
        behind = "{mean:.2g} [{low:.2g}, {high:.2g}]".format(**row["behind_float32"])
        ends = (f"{row['measure']:.4g}", behind, f"{row['training_loss']:.4g}")
    sizes = (f"{row['bytes_per_upload']:,}", f"{row['times_fewer_up']:,.0f}", f"{row['times_fewer_both_ways']:.3g}")
    return (row["arm"], f"{row['step_size']:g}", *sizes, *ends)


def filled(text: str, generated: Mapping[str, str]) -> str:
    """Return the page with each generated section between its markers."""
    for name, content in generated.items():
        pattern = rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)"
        if not re.search(pattern, text, flags=re.S):
            raise SystemExit(f"docs/models.md has no place for {name}")
        text = re.sub(pattern, lambda m, new=content: f"{m[1]}\n{new}\n\n{m[2]}", text, flags=re.S)
    return text


if __name__ == "__main__":
    if len(sys.argv) > 1:
        publish(Path(sys.argv[1]))
    draw()
    stored = json.loads((PUBLISHED / "models-verdicts.json").read_text(encoding="utf-8"))
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), sections(stored)), encoding="utf-8")
