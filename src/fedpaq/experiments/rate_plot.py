"""Rate plot: the sixth figure as one picture, training loss against the bytes really uploaded.

One plot a problem. Curves of one colour have the same bytes an upload: hollow and dashed is s, filled and solid
``Rotated``. So what a colour's two curves end at is what the quantizer is worth.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpaq.experiments.curve import Curves
from fedpaq.experiments.figures import Figure
from fedpaq.experiments.plot import Look, draw_band, range_of, save, set_loss_axis
from fedpaq.experiments.rates import NAME

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

COLUMNS = 3
MEGABYTE = 8e6  # bits
RATE_LOOKS = (  # in the order of a plot's curves: s = 1, 5, 10, no quantization; Rotated
    Look("#0072B2", "o", "--", "circle-open", "dash", hollow=True),
    Look("#D55E00", "s", "--", "square-open", "dash", hollow=True),
    Look("#009E73", "^", "--", "triangle-up-open", "dash", hollow=True),
    Look("#000000", "D", ":", "diamond-open", "dot", hollow=True),
    Look("#0072B2", "o", "-", "circle", "solid"),
    Look("#D55E00", "s", "-", "square", "solid"),
    Look("#009E73", "^", "-", "triangle-up", "solid"),
    Look("#CC79A7", "v", "-", "triangle-down", "solid"),
)

Results = Sequence[tuple[Figure, Curves]]


def save_rate_plot(results: Results, folder: Path) -> list[Path]:
    """Write the picture of the plots that are there as PNG and PDF and return the paths."""
    return save(lambda: draw_rates(results), folder / NAME)


def draw_rates(results: Results) -> Canvas:
    """Return the picture as a matplotlib figure: a grid of plots, the legend in the next free place."""
    from matplotlib.figure import Figure as Canvas

    rows = len(results) // COLUMNS + 1
    canvas = Canvas(figsize=(14, 4.2 * rows), layout="constrained")
    axes: Any = canvas.subplots(rows, COLUMNS, squeeze=False).reshape(-1)
    for axis, (plot, curves) in zip(axes, results, strict=False):
        _draw_plot(axis, plot, curves)
    for axis in axes[len(results) :]:
        axis.set_axis_off()
    for axis in axes[: len(results) : COLUMNS]:
        axis.set_ylabel("training loss f(x_k)")
    handles, labels = axes[0].get_legend_handles_labels()
    axes[len(results)].legend(handles, labels, loc="center", fontsize=10, labelspacing=0.9, handlelength=4)
    seeds = len(next(iter(results[0][1].values())).settings.seeds)
    canvas.suptitle(f"Training loss against the bytes really uploaded; mean and range of {seeds} seeds", fontsize=10)
    return canvas


def _draw_plot(axis: Any, plot: Figure, curves: Curves) -> None:
    (panel,) = plot.panels
    shown = [curves[setting] for setting in panel.curves.values()]
    for look, label, curve in zip(RATE_LOOKS, panel.curves, shown, strict=True):
        megabytes = curve.bits("payload").mean(axis=0)[1:] / MEGABYTE
        draw_band(axis, label, megabytes, curve.loss[:, 1:], look)
    axis.set(xscale="log", yscale="log", xlabel="uploaded so far by all clients (MB)")
    axis.xaxis.set_major_formatter("{x:g}")
    set_loss_axis(axis, *range_of(curve.loss for curve in shown))
    axis.set_title(f"{panel.title}\n{panel.fixed}", fontsize=9)
