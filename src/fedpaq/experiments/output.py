"""Output: everything ``fedpaq reproduce`` leaves in a folder, made from its finished curves.

curves/<figure>/*.json    every curve, with the step sizes tried
<figure>-<count>.png/pdf  the paper's four panels, under both counts of bits
verdicts.json             every claim, its criterion, numbers and verdict
report.html               all of it as one page

A curve is named by its setting and the hash of everything it depends on. A finished curve is never
computed again. It is written in one step: after an interruption its file is whole or absent.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpaq.errors import ConfigError
from fedpaq.experiments.claims import judge
from fedpaq.experiments.curve import ACCOUNTINGS, Curve, Curves, CurveSettings, curve_settings
from fedpaq.experiments.figures import FIGURES, Figure
from fedpaq.experiments.plot import save_plots
from fedpaq.experiments.report import save_report
from fedpaq.storage.atomic_file import atomic_write


@dataclass(frozen=True)
class Output:
    """The folder ``folder``: its curves, and what is drawn from them."""

    folder: Path

    @property
    def report(self) -> Path:
        """Where the page is."""
        return self.folder / "report.html"

    def path(self, figure: Figure, settings: CurveSettings) -> Path:
        """Return where the curve with these settings is, or would be."""
        return self.folder / "curves" / figure.folder / f"{settings.setting.slug}-{settings.key}.json"

    def load(self, figure: Figure, settings: CurveSettings) -> Curve | None:
        """Return the finished curve, or None if it is absent or its file is damaged."""
        try:
            return Curve.from_json(self.path(figure, settings).read_text(encoding="utf-8"))
        except (FileNotFoundError, ConfigError):
            return None

    def save(self, figure: Figure, curve: Curve) -> Path:
        """Write a curve so that even a power cut leaves the whole file or none."""
        path = self.path(figure, curve.settings)
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, curve.to_json().encode())
        return path

    def curves(self, figure: Figure) -> Curves | None:
        """Return all curves of a figure, or None while some are missing."""
        found = {settings.setting: self.load(figure, settings) for settings in curve_settings(figure)}
        curves = {setting: curve for setting, curve in found.items() if curve is not None}
        return curves if len(curves) == len(found) else None

    def finished(self) -> list[tuple[Figure, Curves]]:
        """Return every figure whose curves are all there, in the paper's order."""
        found = [(figure, self.curves(figure)) for figure in FIGURES.values()]
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
