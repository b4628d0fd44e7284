"""Output: everything ``fedpaq reproduce`` leaves in a folder, made from its finished curves.

curves/<figure>/*.json    every curve, with the step sizes tried
<figure>-<count>.png/pdf  the paper's four panels, under each count of bits
verdicts.json             every claim, its criterion, numbers and verdict
rates.png/pdf             the plots of the sixth figure, if any were run
rates-verdicts.json       its claims
models/<task>/*.json      every tuning and run of the study of models
models-<task>.png/pdf     what it shows, once float32 and another arm are there
models-verdicts.json      its claims and tables
report.html               all of it as one page
priced/                   the same, but curves, on a network where downloads or rounds take time as well

A curve is named by its setting and the hash of everything it depends on. A finished curve is never
computed again. It is written in one step: after an interruption its file is whole or absent.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedpaq.errors import ConfigError
from fedpaq.experiments.claims import judge
from fedpaq.experiments.curve import ACCOUNTINGS, Curve, Curves, CurveSettings, curve_settings
from fedpaq.experiments.figures import FIGURES, Figure
from fedpaq.experiments.models import TASKS, Study, save_picture
from fedpaq.experiments.plot import save_plots
from fedpaq.experiments.rate_claims import judge_rates
from fedpaq.experiments.rate_plot import save_rate_plot
from fedpaq.experiments.rates import MODELS, PLOTS
from fedpaq.experiments.report import save_report
from fedpaq.storage.atomic_file import atomic_write


@dataclass(frozen=True)
class Output:
    """The folder ``folder``: its curves, and what is drawn from them."""

    folder: Path
    device: str = "cpu"  # where its curves were run

    @property
    def results(self) -> Path:
        """The folder of what is made from the curves."""
        return self.folder

    @property
    def prices(self) -> dict[str, float]:
        """What the paper does not charge and these results do."""
        return {}

    @property
    def report(self) -> Path:
        """Where the page is."""
        return self.results / "report.html"

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
        found = {settings.setting: self.load(figure, settings) for settings in curve_settings(figure, self.device)}
        curves = {setting: curve for setting, curve in found.items() if curve is not None}
        return curves if len(curves) == len(found) else None

    def finished(self) -> list[tuple[Figure, Curves]]:
        """Return every figure of the paper whose curves are all there, in the paper's order."""
        return self._finished(FIGURES.values())

    def finished_rates(self) -> list[tuple[Figure, Curves]]:
        """Return every plot of the sixth figure whose curves are all there."""
        return self._finished(PLOTS.values())

    def _finished(self, figures: Iterable[Figure]) -> list[tuple[Figure, Curves]]:
        found = [(figure, self.curves(figure)) for figure in figures]
        return [(figure, curves) for figure, curves in found if curves is not None]

    def save_plots(self, figure: Figure, curves: Curves) -> list[Path]:
        """Draw one figure under every count; a plot of the sixth with all its other plots that are there."""
        self.results.mkdir(parents=True, exist_ok=True)
        if figure.beside is not None:
            return save_rate_plot(self.finished_rates(), self.results)
        return [path for name in ACCOUNTINGS for path in save_plots(figure, curves, name, self.results)]

    def save_summary(self) -> list[dict[str, Any]]:
        """Judge all finished figures, write verdicts and report, and return the verdicts."""
        results, rates = self.finished(), self.finished_rates()
        more = {"prices": self.prices} if self.prices else {}
        self.results.mkdir(parents=True, exist_ok=True)
        verdicts = [{**entry, **more} for figure, curves in results for entry in judge(figure, curves)]
        self._save_verdicts("verdicts.json", verdicts)
        if rates:
            beside = [{**entry, **more} for plot, curves in rates for entry in judge_rates(plot, curves)]
            self._save_verdicts("rates-verdicts.json", beside)
            verdicts += beside
        studies = [] if self.prices else self.studies()
        save_report(results + rates, verdicts, self.report, in_words(self.prices), studies)
        return verdicts

    @property
    def trials(self) -> Path:
        """The folder of the study of models."""
        return self.folder / MODELS

    def studies(self) -> list[Study]:
        """Return the tasks of the study of models of which float32 and something else are there."""
        found = [Study.load(task, self.trials) for task in TASKS.values()]
        return [study for study in found if len(study.rows()) > 1]

    def save_studies(self) -> list[dict[str, Any]]:
        """Draw and judge the studies and return a summary of each."""
        studies = self.studies()
        for study in studies:
            save_picture(study, self.folder)
        summaries = [study.summary() for study in studies]
        if summaries:
            self._save_verdicts("models-verdicts.json", summaries)
        return summaries

    def _save_verdicts(self, name: str, verdicts: list[dict[str, Any]]) -> None:
        text = json.dumps(verdicts, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        atomic_write(self.results / name, text.encode())


@dataclass(frozen=True)
class PricedOutput(Output):
    """The same curves on a network that also charges for downloads and rounds, in units of one mean gradient.

    What is made from them is in a folder of its own, so that the paper's results stay, and names the prices.
    """

    downlink_bandwidth: float | None = None
    round_seconds: float = 0.0

    @property
    def results(self) -> Path:
        """The folder of what is made from the curves."""
        return self.folder / "priced"

    @property
    def prices(self) -> dict[str, float]:
        """What the paper does not charge and these results do."""
        down, fixed = self.downlink_bandwidth, self.round_seconds
        prices = {"bits_down_per_gradient_time": down, "gradient_times_per_round": fixed}
        return {name: price for name, price in prices.items() if price}

    def price(self, figure: Figure) -> Figure:
        """Return the figure under these prices, which says so; its curves are the same."""
        return replace(
            figure,
            downlink_bandwidth=self.downlink_bandwidth,
            round_seconds=self.round_seconds,
            prices=in_words(self.prices),
        )

    def _finished(self, figures: Iterable[Figure]) -> list[tuple[Figure, Curves]]:
        return super()._finished(map(self.price, figures))


def in_words(prices: dict[str, float]) -> str:
    """Return prices as a person reads them.

    >>> in_words({"bits_down_per_gradient_time": 5e4, "gradient_times_per_round": 1000.0})
    'priced: 50,000 bits down per gradient time, 1,000 gradient times per round'
    """
    parts = [f"{price:,.6g} {name.replace('_', ' ')}" for name, price in prices.items()]
    return f"priced: {', '.join(parts)}" if parts else ""
