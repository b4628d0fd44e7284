"""Publish a finished ``fedpaq reproduce`` folder: copy it to docs/figures/paper and fill in docs/reproduce.md.

python scripts/reproduce_docs.py reproduction   # copy, then fill in
python scripts/reproduce_docs.py                # fill in from what was copied before
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

from fedpaq.experiments import FIGURES, Curve, Figure, Setting, markdown

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE, PUBLISHED = DOCS / "reproduce.md", DOCS / "figures" / "paper"


def publish(folder: Path) -> None:
    """Copy curves, pictures and verdicts of ``folder``; the report is too large, and no page shows a PDF."""
    shutil.rmtree(PUBLISHED, ignore_errors=True)
    PUBLISHED.mkdir(parents=True)
    shutil.copytree(folder / "curves", PUBLISHED / "curves")
    for path in sorted([*folder.glob("*.png"), folder / "verdicts.json"]):
        shutil.copy(path, PUBLISHED)


def sections() -> dict[str, str]:
    """Return every generated section of the page by name."""
    verdicts = json.loads((PUBLISHED / "verdicts.json").read_text(encoding="utf-8"))
    found = {"score": markdown.score(verdicts)}
    for figure in FIGURES.values():
        curves = published_curves(figure)
        if set(curves) != set(figure.settings):
            continue
        about = [entry for entry in verdicts if entry["figure"] == figure.name]
        found[figure.name] = "\n\n".join(
            [
                f"![{figure.title}, real payload](figures/paper/{figure.name}-payload.png)",
                f"![{figure.title}, fixed width](figures/paper/{figure.name}-fixed-width.png)",
                markdown.verdict_table(about),
                "The curves (mean over five seeds, times in mean gradient times):",
                markdown.curve_table(figure, curves),
            ]
        )
    return found


def published_curves(figure: Figure) -> dict[Setting, Curve]:
    """Return the curves that were copied, in the figure's order, whatever version made them."""
    paths = (PUBLISHED / "curves" / figure.name).glob("*.json")
    curves = {c.settings.setting: c for c in (Curve.from_json(p.read_text(encoding="utf-8")) for p in paths)}
    return {setting: curves[setting] for setting in figure.settings if setting in curves}


def filled(text: str, generated: dict[str, str]) -> str:
    """Return the page with each generated section between its markers; figures not run say so."""
    for name in ["score", *FIGURES]:
        content = generated.get(name, "Not run yet: `fedpaq reproduce " + name + "`.")
        pattern = rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)"
        text = re.sub(pattern, lambda m, new=content: f"{m[1]}\n{new}\n\n{m[2]}", text, flags=re.S)
    return text


if __name__ == "__main__":
    if len(sys.argv) > 1:
        publish(Path(sys.argv[1]))
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), sections()), encoding="utf-8")
