"""Publish a finished ``fedpaq reproduce`` folder: copy it to docs/figures/paper and fill in docs/reproduce.md.

python scripts/reproduce_docs.py reproduction   # copy, then fill in
python scripts/reproduce_docs.py                # fill in from what was copied before
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedpaq.cost_model import CostModel
from fedpaq.experiments import FIGURES, PLOTS, Curve, Figure, PaperSetting
from fedpaq.experiments.curve import ACCOUNTINGS, Curves
from fedpaq.experiments.judging import FAILS, HOLDS, UNDECIDED
from fedpaq.experiments.rates import NAME as RATES

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE, PUBLISHED = DOCS / "reproduce.md", DOCS / "figures" / "paper"
MARKS = {HOLDS: "✓", FAILS: "✗", UNDECIDED: "?"}


def publish(folder: Path) -> None:
    """Copy curves, pictures and verdicts of ``folder``; the report is too large, and no page shows a PDF."""
    shutil.rmtree(PUBLISHED, ignore_errors=True)
    PUBLISHED.mkdir(parents=True)
    shutil.copytree(folder / "curves", PUBLISHED / "curves")
    for path in sorted([*folder.glob("*.png"), *folder.glob("*verdicts.json")]):
        shutil.copy(path, PUBLISHED)


def sections() -> dict[str, str]:
    """Return every generated section of the page by name."""
    verdicts = json.loads((PUBLISHED / "verdicts.json").read_text(encoding="utf-8"))
    found = {"score": score(verdicts)}
    for figure in FIGURES.values():
        curves = published_curves(figure)
        if set(curves) != set(figure.settings):
            continue
        about = [entry for entry in verdicts if entry["figure"] == figure.name]
        found[figure.name] = "\n\n".join(
            [
                f"![{figure.title}, real payload](figures/paper/{figure.name}-payload.png)",
                f"![{figure.title}, fixed width](figures/paper/{figure.name}-fixed-width.png)",
                verdict_table(about),
                "The curves (mean over five seeds, times in mean gradient times):",
                curve_table(figure, curves),
            ]
        )
    plots = [(plot, published_curves(plot)) for plot in PLOTS.values()]
    finished = [(plot, curves) for plot, curves in plots if set(curves) == set(plot.settings)]
    return found | ({RATES: rates_section(finished)} if finished else {})


def rates_section(plots: Sequence[tuple[Figure, Curves]]) -> str:
    """Return the section of the sixth figure: picture, verdicts, and a table of each problem's curves."""
    verdicts = json.loads((PUBLISHED / "rates-verdicts.json").read_text(encoding="utf-8"))
    order = list(dict.fromkeys(entry["figure"] for entry in verdicts))
    plots = sorted(plots, key=lambda pair: order.index(pair[0].name))
    titles = {plot.name: plot.title for plot, _ in plots}
    lines = ["| problem | claim | criterion | verdict |", "| --- | --- | --- | --- |"]
    for entry in verdicts:
        cells = (titles[entry["figure"]], entry["sentence"], entry["criterion"], _cell(entry["judged"]["payload"]))
        lines.append(f"| {' | '.join(cells)} |")
    parts = ["![Training loss against uploaded bytes](figures/paper/rates.png)", "\n".join(lines)]
    for plot, curves in plots:
        parts += [f"{plot.title}, {plot.panels[0].fixed} (mean over five seeds):", rate_table(plot, curves)]
    return "\n\n".join(parts)


def rate_table(plot: Figure, curves: Curves) -> str:
    """Return one row per curve: what it sent and what it reached."""
    lines = ["| curve | bytes per upload | step size | loss after T |", "| --- | --- | --- | --- |"]
    for label, setting in plot.panels[0].curves.items():
        curve = curves[setting]
        loss = curve.loss[:, -1]
        lines.append(
            f"| {label} | {mean_upload(curve):,.0f} | {curve.step_size:g} | "
            f"{loss.mean():.4g} ± {loss.std(ddof=1):.2g} |"
        )
    return "\n".join(lines)


def mean_upload(curve: Curve) -> float:
    """Return the mean bytes of an upload."""
    setting = curve.settings.setting
    return float(curve.payload_bytes[:, -1].mean() / (setting.num_rounds * setting.clients_per_round))


def published_curves(figure: Figure) -> dict[PaperSetting, Curve]:
    """Return the curves that were copied, in the figure's order, whatever version made them."""
    paths = (PUBLISHED / "curves" / figure.folder).glob("*.json")
    curves = {c.settings.setting: c for c in (Curve.from_json(p.read_text(encoding="utf-8")) for p in paths)}
    return {setting: curves[setting] for setting in figure.settings if setting in curves}


def filled(text: str, generated: dict[str, str]) -> str:
    """Return the page with each generated section between its markers; figures not run say so."""
    for name in ["score", *FIGURES, RATES]:
        content = generated.get(name, "Not run yet: `fedpaq reproduce " + name + "`.")
        pattern = rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)"
        text = re.sub(pattern, lambda m, new=content: f"{m[1]}\n{new}\n\n{m[2]}", text, flags=re.S)
    return text


def score(verdicts: Sequence[Mapping[str, Any]]) -> str:
    """Count the verdicts under each count of bits."""
    lines = ["| uploads counted in | holds | does not hold | undecided |", "| --- | --- | --- | --- |"]
    for accounting, name in zip(
        ACCOUNTINGS, ("real payload bytes", "fixed width, our reading of the paper"), strict=True
    ):
        found = [entry["judged"][accounting]["verdict"] for entry in verdicts]
        lines.append(f"| {name} | " + " | ".join(str(found.count(verdict)) for verdict in MARKS) + " |")
    return "\n".join(lines)


def verdict_table(verdicts: Sequence[Mapping[str, Any]]) -> str:
    """Return one row per claim: sentence, criterion, and verdict and deciding ratio per count."""
    lines = ["| sentence | criterion | real payload | fixed width |", "| --- | --- | --- | --- |"]
    for entry in verdicts:
        cells = [_cell(entry["judged"][accounting]) for accounting in ACCOUNTINGS]
        sentence = f"“{entry['sentence']}” ({entry['where']})"
        lines.append(f"| {sentence} | {entry['criterion']} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines)


def curve_table(figure: Figure, curves: Curves) -> str:
    """Return one row per curve: its step size, and what it reached at which cost."""
    cost_model = CostModel.from_ratio(figure.ratio)
    lines = [
        "| curve | step size | loss after T | bytes per upload | time, real payload | time, fixed width |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for setting, curve in curves.items():
        times = [curve.axis("seconds", name, cost_model)[:, -1].mean() for name in ACCOUNTINGS]
        loss = curve.loss[:, -1]
        lines.append(
            f"| {setting.slug} | {curve.step_size:g} | {loss.mean():.4g} ± {loss.std(ddof=1):.2g} | "
            f"{mean_upload(curve):,.0f} | {times[0]:,.0f} | {times[1]:,.0f} |"
        )
    return "\n".join(lines)


def _cell(judged: Mapping[str, Any], digits: int = 3) -> str:
    ratio = judged["decisive"]
    text = f"{MARKS[judged['verdict']]} **{judged['verdict']}**"
    if ratio is None:
        return text
    value, low, high = (f"{ratio[name]:.{digits}g}" for name in ("value", "low", "high"))
    return f"{text}<br>{ratio['what']}: {value} [{low}, {high}]"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        publish(Path(sys.argv[1]))
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), sections()), encoding="utf-8")
