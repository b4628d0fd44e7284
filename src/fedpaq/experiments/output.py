"""Output: everything ``fedpaq reproduce`` leaves in a folder, made from its finished curves.

curves/<figure>/*.json    every curve, with the step sizes tried
<figure>-<count>.png/pdf  the paper's four panels, under both counts of bits
verdicts.json             every claim, its criterion, numbers and verdict
report.html               all of it as one page
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpaq.experiments.claims import judge
from fedpaq.experiments.curve import ACCOUNTINGS
from fedpaq.experiments.evidence import Curves
from fedpaq.experiments.figures import FIGURES, Figure
from fedpaq.experiments.plot import save_plots
from fedpaq.experiments.report import save_report
from fedpaq.experiments.store import CurveStore
from fedpaq.storage.atomic_file import atomic_write


@dataclass(frozen=True)
class Output:
    """The folder ``folder``, and what is drawn from its curves."""

    folder: Path

    @property
    def store(self) -> CurveStore:
        """The finished curves."""
        return CurveStore(self.folder)

    @property
    def report(self) -> Path:
        """Where the page lies."""
        return self.folder / "report.html"

    def finished(self) -> list[tuple[Figure, Curves]]:
        """Return every figure whose curves are all there, in the paper's order."""
        found = [(figure, self.store.figure(figure)) for figure in FIGURES.values()]
        return [(figure, curves) for figure, curves in found if curves is not None]

    def save_plots(self, figure: Figure, curves: Curves) -> list[Path]:
        """Draw one figure under both counts."""
        return [path for name in ACCOUNTINGS for path in save_plots(figure, curves, name, self.folder)]

    def save_summary(self) -> list[dict[str, Any]]:
        """Judge all finished figures, write verdicts and report, and return the verdicts."""
        results = self.finished()
        verdicts = [entry for figure, curves in results for entry in judge(figure, curves)]
        text = json.dumps(verdicts, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        atomic_write(self.folder / "verdicts.json", text.encode())
        save_report(results, verdicts, self.report)
        return verdicts
