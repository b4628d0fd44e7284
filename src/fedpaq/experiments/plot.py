"""Plot: a figure in the paper's four-panel form, relative training loss against modelled time.

The curves of a panel differ in colour, marker and dash at once. The colours are those of Okabe and
Ito, which people with any common colour blindness can tell apart.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpaq.arrays import Float64
from fedpaq.cost_model import CostModel
from fedpaq.experiments.curve import Curve, Curves
from fedpaq.experiments.figures import Figure, Panel
from fedpaq.storage.atomic_file import atomic_write

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas


@dataclass(frozen=True)
class Look:
    """A colour, and a marker and dash as matplotlib and as plotly name them."""

    colour: str
    marker: str
    dash: str
    plotly_marker: str
    plotly_dash: str
    hollow: bool = False

    @property
    def plotly(self) -> dict[str, str]:
        """What the report's page draws with."""
        return {"colour": self.colour, "marker": self.plotly_marker, "dash": self.plotly_dash}


LOOKS = (
    Look("#0072B2", "o", "-", "circle", "solid"),
    Look("#D55E00", "s", "--", "square", "dash"),
    Look("#009E73", "^", "-.", "triangle-up", "dashdot"),
    Look("#CC79A7", "D", ":", "diamond", "dot"),
    Look("#E69F00", "v", "-", "triangle-down", "solid"),
    Look("#56B4E9", "X", "--", "x", "dash"),
)
COUNTED = {
    "payload": "uploads counted in real payload bytes",
    "elias": "uploads counted by QSGD's bound for its Elias code",
    "fixed-width": "uploads counted in fixed-width bits, our reading of the paper",
}
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "svg.hashsalt": "fedpaq",
}


def save_plots(figure: Figure, curves: Curves, accounting: str, folder: Path) -> list[Path]:
    """Write the figure as PNG and PDF and return the paths."""
    return save(lambda: draw(figure, curves, accounting), folder / f"{figure.name}-{accounting}")


def save(draw: Callable[[], Canvas], stem: Path) -> list[Path]:
    """Draw a picture in this style, write it as PNG and PDF and return the paths."""
    import matplotlib

    paths = []
    with matplotlib.rc_context(STYLE):
        canvas = draw()
        for kind in ("png", "pdf"):
            content = io.BytesIO()
            # No dates inside: the same curves give the same files.
            dates = {"CreationDate": None} if kind == "pdf" else {"Software": None}
            canvas.savefig(content, format=kind, dpi=150, metadata=dates)
            path = stem.with_name(f"{stem.name}.{kind}")
            atomic_write(path, content.getvalue())
            paths.append(path)
    return paths


def draw(figure: Figure, curves: Curves, accounting: str) -> Canvas:
    """Return the figure as a matplotlib figure; no display is needed."""
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(14, 4.1), layout="constrained")
    axes: Any = canvas.subplots(1, len(figure.panels))
    for axis, panel in zip(axes, figure.panels, strict=True):
        _draw_panel(axis, panel, curves, figure.cost_model, accounting)
    axes[0].set_ylabel("relative training loss  f(x_k) / f(x_0)")
    title = f"{figure.title} [{figure.where}]: {COUNTED[accounting]}; mean and range of {seeds_of(curves)}"
    canvas.suptitle(f"{title}\n{figure.prices}" if figure.prices else title, fontsize=10)
    return canvas


def seeds_of(curves: Curves) -> str:
    """Return how many seeds the curves have, in words."""
    fewest, most = (end(curve.num_seeds for curve in curves.values()) for end in (min, max))
    return f"{most} seeds" if fewest == most else f"{fewest} to {most} seeds"


def _draw_panel(axis: Any, panel: Panel, curves: Curves, cost_model: CostModel, accounting: str) -> None:
    for look, (label, setting) in zip(LOOKS, panel.curves.items(), strict=False):
        curve = curves[setting]
        # From round 1 on, as in the paper: before it no time has passed, and the axis is logarithmic.
        time = curve.axis("seconds", accounting, cost_model).mean(axis=0)[1:]
        draw_band(axis, label, time, curve.relative_loss[:, 1:], look)
    axis.set(xscale="log", yscale="log", xlabel="modelled time (mean gradient times)")
    set_loss_axis(axis, *loss_range([curves[setting] for setting in panel.curves.values()]))
    axis.set_title(f"{panel.title}\n{panel.fixed}", fontsize=9)
    columns = 3 if len(panel.curves) > 4 else 2
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=columns, columnspacing=1.2)


def draw_band(axis: Any, label: str, x: Float64, y: Float64, look: Look) -> None:
    """Draw the mean and the range of y (seeds, rounds) against x (rounds,)."""
    axis.fill_between(x, y.min(axis=0), y.max(axis=0), color=look.colour, alpha=0.18, linewidth=0)
    axis.plot(
        x,
        y.mean(axis=0),
        label=label,
        color=look.colour,
        linestyle=look.dash,
        linewidth=1.4,
        marker=look.marker,
        markersize=4,
        markevery=max(1, len(x) // 10),
        **({"markerfacecolor": "white"} if look.hollow else {}),
    )


def set_loss_axis(axis: Any, low: float, high: float) -> None:
    """Give a logarithmic y axis its ends and round ticks."""
    axis.set_ylim(low, high)
    axis.set_yticks(ticks(low, high), [f"{tick:g}" for tick in ticks(low, high)])
    axis.set_yticks([], minor=True)


def loss_range(curves: Sequence[Curve]) -> tuple[float, float]:
    """Return the ends of a panel's axis of relative losses."""
    return range_of(curve.relative_loss for curve in curves)


def range_of(losses: Iterable[Float64]) -> tuple[float, float]:
    """Return the ends of an axis for losses (seeds, rounds): all bands from round 1 on, and a little air."""
    bands = [values[:, 1:] for values in losses]
    low, high = min(float(band.min()) for band in bands), max(float(band.max()) for band in bands)
    air = (high / low) ** 0.05
    return float(f"{low / air:.4g}"), float(f"{high * air:.4g}")


def ticks(low: float, high: float) -> list[float]:
    """Return round numbers between the ends of a logarithmic axis, at most about eight.

    >>> ticks(0.04, 3)
    [0.05, 0.1, 0.2, 0.5, 1.0, 2.0]
    >>> ticks(0.71, 1.02)
    [0.75, 0.8, 0.85, 0.9, 0.95, 1.0]
    >>> ticks(0.0021, 0.0094)
    [0.003, 0.004, 0.005, 0.006, 0.007, 0.008, 0.009]
    """
    if high / low > 6:
        powers = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
        values = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    else:
        power = int(np.floor(np.log10((high - low) / 8)))
        steps = [digit * 10.0**exponent for exponent in (power, power + 1) for digit in (1, 2, 5)]
        step = min(step for step in steps if (high - low) / step <= 8)
        values = [step * number for number in range(int(low / step), int(high / step) + 1)]
    return [float(f"{value:.6g}") for value in values if low <= value <= high]
