"""The picture of a check: measured mean with its error band, under the bounds, on log-log axes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedpaq.theory.verification.check import Check

STYLE = {
    "as_stated": ("tab:red", "--", "bound as stated"),
    "as_derived": ("tab:orange", ":", "bound as derived"),
    "corrected": ("tab:green", "-.", "bound corrected"),
    "heterogeneous": ("tab:purple", (0, (3, 1, 1, 1)), "bound for clients that differ"),
}
LEFT_SIDE = {1: r"$E\,\|x_k - x^*\|^2$", 2: r"mean $E\,\|\nabla f(\bar x_{k,t})\|^2$"}
RATE = {1: -1.0, 2: -0.5}


def save_plot(checks: Sequence[Check], titles: Sequence[str], path: Path) -> None:
    """Draw one panel per check side by side and write them to ``path`` (format by its suffix)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6 * len(checks), 3.8), layout="constrained")
    panels = figure.subplots(1, len(checks), squeeze=False)[0]
    for panel, check, title in zip(panels, checks, titles, strict=True):
        draw(panel, check)
        panel.set_title(title, fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None} if path.suffix == ".png" else None)


def draw(panel: Any, check: Check) -> None:
    """Draw one check on a Matplotlib panel."""
    for bound in check.bounds:
        colour, style, label = STYLE[bound.variant]
        panel.plot(check.steps, bound.values, style, color=colour, label=label)
    low = np.maximum(check.mean - 2 * check.standard_error, check.mean * 1e-3)
    panel.fill_between(check.steps, low, check.mean + 2 * check.standard_error, alpha=0.25)
    panel.plot(check.steps, check.mean, "-" if check.theorem == 1 else "o-", label=_label(check))
    if check.slope is not None:
        guide = 0.6 * check.mean[-1] * (check.steps / check.steps[-1]) ** RATE[check.theorem]
        later = check.steps >= check.steps[-1] / 100
        name = "1/T" if check.theorem == 1 else "1/√T"
        panel.plot(check.steps[later], guide[later], color="grey", linewidth=0.8, label=f"∝ {name}")
    panel.set(xscale="log", yscale="log", ylabel=LEFT_SIDE[check.theorem])
    panel.xaxis.set_minor_formatter("")  # on less than two decades its labels would overlap
    panel.set_xlabel("local steps $k\\tau + 1$" if check.theorem == 1 else "local steps $T$")
    panel.legend(fontsize=7)


def _label(check: Check) -> str:
    if check.slope is None:
        return "measured"
    return f"measured, slope {check.slope.value:.2f} [{check.slope.low:.2f}, {check.slope.high:.2f}]"
