"""Store: the folder of finished curves. What is there is never computed again.

A curve is one JSON file, named by its setting and the hash of everything it depends on, and
written in one step: after an interruption a file is whole or absent.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedpaq.errors import ConfigError
from fedpaq.experiments.curve import Curve, CurveSettings, curve_settings
from fedpaq.experiments.figures import Figure, Setting
from fedpaq.storage.atomic_file import atomic_write


@dataclass(frozen=True)
class CurveStore:
    """Curves under ``folder``/curves/<figure>/."""

    folder: Path

    def path(self, figure: Figure, settings: CurveSettings) -> Path:
        """Return where the curve with these settings lies, or would."""
        return self.folder / "curves" / figure.name / f"{settings.setting.slug}-{settings.key}.json"

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

    def figure(self, figure: Figure) -> dict[Setting, Curve] | None:
        """Return all curves of a figure, or None while some are missing."""
        curves = {}
        for settings in curve_settings(figure):
            curve = self.load(figure, settings)
            if curve is None:
                return None
            curves[settings.setting] = curve
        return curves
