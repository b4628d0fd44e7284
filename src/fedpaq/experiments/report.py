"""Report: all figures and verdicts as one HTML page that needs no network."""

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from fedpaq import __version__
from fedpaq.cost_model import CostModel
from fedpaq.experiments.curve import ACCOUNTINGS, Curve, Curves, rounded
from fedpaq.experiments.figures import Figure, Panel
from fedpaq.experiments.models import Study, panels
from fedpaq.experiments.plot import LOOKS, Look, loss_range, seeds_of, ticks
from fedpaq.experiments.rate_plot import RATE_LOOKS
from fedpaq.experiments.rates import NAME
from fedpaq.storage.atomic_file import atomic_write

Results = Sequence[tuple[Figure, Curves]]


def save_report(
    results: Results, verdicts: Sequence[Mapping[str, Any]], path: Path, prices: str = "", studies: Sequence[Study] = ()
) -> None:
    """Write the page: data, plotting library and code in one file; ``prices`` is what the paper does not charge."""
    from plotly.offline import get_plotlyjs

    template = (resources.files("fedpaq.experiments") / "report.html").read_text(encoding="utf-8")
    data = {
        "version": __version__,
        "prices": prices,
        "figures": [_figure(figure, curves) for figure, curves in results],
        "verdicts": list(verdicts),
        "studies": [{**study.summary(), "panels": panels(study)} for study in studies],
    }
    # "</" would end the script element early.
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False).replace("</", "<\\/")
    page = template.replace("/*DATA*/", text).replace("/*PLOTLY*/", get_plotlyjs())
    atomic_write(path, page.encode())


def _figure(figure: Figure, curves: Curves) -> dict[str, Any]:
    return {
        **{name: getattr(figure, name) for name in ("name", "title", "where", "ratio")},
        "seeds": seeds_of(curves),
        "dimension": next(iter(curves.values())).dimension,
        "panels": [_panel(panel, curves, figure.cost_model) for panel in figure.panels],
    }


def _panel(panel: Panel, curves: Curves, cost_model: CostModel) -> dict[str, Any]:
    looks = RATE_LOOKS if panel.name == NAME else LOOKS
    low, high = loss_range([curves[setting] for setting in panel.curves.values()])
    return {
        **{name: getattr(panel, name) for name in ("name", "title", "fixed")},
        "range": [low, high],
        "ticks": ticks(low, high),
        "curves": [
            _curve(label, look, curves[setting], cost_model)
            for look, (label, setting) in zip(looks, panel.curves.items(), strict=False)
        ],
    }


def _curve(label: str, look: Look, curve: Curve, cost_model: CostModel) -> dict[str, Any]:
    """Return what the page draws: means and range over seeds from round 1 on."""
    relative = curve.relative_loss[:, 1:]
    counts = ACCOUNTINGS if curve.settings.setting.other is None else ACCOUNTINGS[:1]  # no other count
    return {
        "label": label,
        "look": look.plotly,
        "setting": curve.settings.setting.slug,
        "step_size": curve.step_size,
        "loss": rounded(curve.loss[:, 1:].mean(axis=0)),
        "mean": rounded(relative.mean(axis=0)),
        "low": rounded(relative.min(axis=0)),
        "high": rounded(relative.max(axis=0)),
        **{
            axis: {name: rounded(curve.axis(axis, name, cost_model).mean(axis=0)[1:]) for name in counts}
            for axis in ("seconds", "bits")
        },
    }
