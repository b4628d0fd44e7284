"""The picture of ``rate_distortion``: a panel a vector, and one for the Gaussian limit at three sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from fedpaq.experiments.plot import LOOKS

FIGURE = Path(__file__).resolve().parents[1] / "docs" / "figures" / "rate-distortion.png"
TITLES = {
    "mnist-logistic": "MNIST logistic regression",
    "fashion-mlp": "Fashion-MNIST network",
    "cifar10-mlp-92k": "CIFAR-10 network",
    "resnet18-gn": "ResNet-18",
}


def draw_vector(axis: Any, name: str, panel: dict[str, Any]) -> None:
    """Draw error against bytes for one vector."""
    dimension = panel["dimension"]
    for look, (label, points) in zip(LOOKS, panel["lines"].items(), strict=False):
        size, error = [point["bytes"] for point in points], [point["nmse"] for point in points]
        axis.loglog(size, error, look.dash, marker=look.marker, color=look.colour, label=label, ms=5)
    size = np.geomspace(dimension * 0.005 / 8 + 10, dimension * 4.2 / 8, 100)
    axis.loglog(size, 1 / (4 ** (8 * size / dimension) - 1), "k-", lw=1, label="limit of a Gaussian")
    axis.set(title=f"{TITLES.get(name, name)}, p = {dimension:,}", xlabel="bytes per upload", ylim=(1e-3, 1e3))
    axis.set_xlim(left=dimension * 0.005 / 8 + 8)
    axis.grid(alpha=0.3)


def draw_limit(axis: Any, results: dict[str, Any]) -> None:
    """Draw error over the limit against the rate, for Gaussian vectors of several sizes."""
    for look, (dimension, found) in zip(LOOKS, results["sizes"].items(), strict=False):
        rates = [point["rate"] for point in found["points"]]
        over = [point["over_limit"] for point in found["points"]]
        label = f"Rotated, p = {int(dimension):,}"
        axis.semilogx(rates, over, look.dash, marker=look.marker, color=look.colour, label=label, ms=5)
    ideal = results["ideal_over_limit"]
    axis.semilogx([float(rate) for rate in ideal], list(ideal.values()), "k--", lw=1, label="best scalar quantizer")
    peer = results["vectors"]["Gaussian"]["lines"]["EDEN (DRIVE at one bit)"]
    axis.semilogx([p["rate"] for p in peer], [p["over_limit"] for p in peer], ":", color="0.4", label="EDEN")
    axis.set(title="Gaussian: error over the limit", xlabel="bits per coordinate", ylim=(1, 3.2))
    axis.legend(fontsize=9, loc="upper left")
    axis.grid(alpha=0.3)


def draw_picture(results: dict[str, Any]) -> None:
    """Draw a panel a vector, the limit and the legend: two rows of four at most."""
    columns = -(-(len(results["vectors"]) + 2) // 2)
    figure, axes = plt.subplots(2, columns, figsize=(4.6 * columns, 9), layout="constrained")
    places = list(axes.flat)
    for axis, (name, panel) in zip(places, results["vectors"].items(), strict=False):
        draw_vector(axis, name, panel)
    draw_limit(places[len(results["vectors"])], results)
    for axis in axes[:, 0]:
        axis.set_ylabel("error, E||Q(x) - x||² / ||x||²")
    for axis in places[len(results["vectors"]) + 1 :]:
        axis.set_axis_off()
    handles, labels = places[0].get_legend_handles_labels()
    places[-1].legend(handles, labels, loc="center", fontsize=11, labelspacing=0.9, handlelength=4, frameon=False)
    FIGURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(FIGURE, dpi=90)
