"""Markdown: verdicts and tuned curves as tables, for the documentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedpaq.cost_model import CostModel
from fedpaq.experiments.curve import ACCOUNTINGS
from fedpaq.experiments.evidence import Curves
from fedpaq.experiments.figures import Figure
from fedpaq.experiments.judging import FAILS, HOLDS, UNDECIDED

MARKS = {HOLDS: "✓", FAILS: "✗", UNDECIDED: "?"}


def score(verdicts: Sequence[Mapping[str, Any]]) -> str:
    """Count the verdicts under each count of bits."""
    lines = ["| uploads counted in | holds | does not hold | undecided |", "| --- | --- | --- | --- |"]
    for accounting, name in zip(ACCOUNTINGS, ("real payload bytes", "the paper's fixed width"), strict=True):
        found = [entry["judged"][accounting]["verdict"] for entry in verdicts]
        lines.append(f"| {name} | " + " | ".join(str(found.count(verdict)) for verdict in MARKS) + " |")
    return "\n".join(lines)


def verdict_table(verdicts: Sequence[Mapping[str, Any]]) -> str:
    """Return one row per claim: sentence, criterion, and verdict and deciding ratio per count."""
    lines = [
        "| sentence | criterion | real payload | fixed width |",
        "| --- | --- | --- | --- |",
    ]
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
        uploads = setting.num_rounds * setting.clients_per_round
        times = [curve.axis("seconds", name, cost_model)[:, -1].mean() for name in ACCOUNTINGS]
        loss = curve.loss[:, -1]
        lines.append(
            f"| {setting.slug} | {curve.step_size:g} | {loss.mean():.4g} ± {loss.std(ddof=1):.2g} | "
            f"{curve.payload_bytes[:, -1].mean() / uploads:,.0f} | {times[0]:,.0f} | {times[1]:,.0f} |"
        )
    return "\n".join(lines)


def _cell(judged: Mapping[str, Any]) -> str:
    ratio = judged["decisive"]
    text = f"{MARKS[judged['verdict']]} **{judged['verdict']}**"
    if ratio is None:
        return text
    return f"{text}<br>{ratio['what']}: {ratio['value']:.3g} [{ratio['low']:.3g}, {ratio['high']:.3g}]"
