"""The picture of a plan: time to target over tau and quantizer, and the front of time against upload."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedpaq.planner.recommendation import Plan, run_race
from fedpaq.planner.search_space import SearchSpace
from fedpaq.quantizers import text_of
from fedpaq.theory.round_setting import RoundSetting

SLOWEST = 10.0  # times the pick's seconds shown in the map

TimeMap = dict[RoundSetting, float | None]  # seconds; None: slower than SLOWEST


def time_map(plan: Plan, space: SearchSpace, progress: Callable[[RoundSetting], None] | None = None) -> TimeMap:
    """Return the time to target for every tau and quantizer with the pick's cohort, at the best step size.

    ``progress`` is called with each setting before it is timed.
    """
    times: TimeMap = {}
    pick = plan.pick.setting
    quantizers = list(dict.fromkeys([*space.quantizers, pick.quantizer]))  # the pick's rate may lie between theirs
    for setting in replace(
        space, clients_per_round=[pick.clients_per_round], quantizers=quantizers, downlinks=[pick.downlink]
    ).settings():
        if progress is not None:
            progress(setting)
        finished, _ = run_race(plan.task, [setting], space.step_sizes, "map", max_seconds=SLOWEST * plan.pick.seconds)
        best = finished[0].finish if finished else None
        times[setting] = None if best is None else best.seconds
    return times


def pareto_front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points that no other beats in both coordinates, by the first.

    >>> pareto_front([(1.0, 9.0), (2.0, 9.5), (3.0, 4.0)])
    [(1.0, 9.0), (3.0, 4.0)]
    """
    front: list[tuple[float, float]] = []
    for point in sorted(points):
        if not front or point[1] < front[-1][1]:
            front.append(point)
    return front


def save_plot(plan: Plan, times: TimeMap, path: Path) -> None:
    """Draw map and front side by side and write them to ``path`` (format by its suffix)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.0, 4.0), layout="constrained")
    left, right = figure.subplots(1, 2)
    image = draw_map(left, plan, times)
    figure.colorbar(image, ax=left, label="times the pick", format="{x:g}")
    draw_front(right, plan)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def draw_map(panel: Any, plan: Plan, times: TimeMap) -> Any:
    """Draw the times over tau and quantizer as multiples of the pick's, which is framed."""
    from matplotlib.colors import LogNorm
    from matplotlib.patches import Rectangle

    pick = plan.pick.setting
    taus, quantizers = (sorted({at.local_steps for at in times}), list(dict.fromkeys(at.quantizer for at in times)))
    unit = times[pick] or plan.pick.seconds  # measured like the others
    rows = [[replace(pick, local_steps=tau, quantizer=quantizer) for tau in taus] for quantizer in quantizers]
    values = np.array([[(times[setting] or np.nan) / unit for setting in row] for row in rows], float)
    image = panel.imshow(np.ma.masked_invalid(values), norm=LogNorm(vmax=SLOWEST), cmap="viridis_r", aspect="auto")
    for (row, column), value in np.ndenumerate(values):
        text = f">{SLOWEST:.0f}x" if np.isnan(value) else f"{value:.1f}x"
        colour = "white" if value > 4 else "black"
        panel.text(column, row, text, ha="center", va="center", fontsize=8, color=colour)
    corner = taus.index(pick.local_steps) - 0.5, quantizers.index(pick.quantizer) - 0.5
    panel.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor="tab:red", linewidth=2))
    panel.set_xticks(range(len(taus)), [str(tau) for tau in taus])
    panel.set_yticks(range(len(rows)), [str(row[0].levels or text_of(row[0].quantizer)) for row in rows])
    title = f"time to target, r = {pick.clients_per_round}"
    named = "quantizer" if any(row[0].levels is None for row in rows) else "levels s"
    panel.set(xlabel="local steps τ", ylabel=named, title=title)
    return image


def draw_front(panel: Any, plan: Plan) -> None:
    """Draw every candidate that reached the target in the race, and the front of time against upload."""
    finishes = [candidate.finish for candidate in plan.finished if candidate.finish is not None]
    points = [(finish.seconds, float(np.mean(finish.upload_bytes))) for finish in finishes]
    points += [(choice.seconds, choice.upload_bytes) for choice in (plan.pick, *plan.runners_up)]
    panel.scatter(*zip(*points, strict=True), s=14, alpha=0.5, label="reached the target")
    panel.plot(*zip(*pareto_front(points), strict=True), "o-", color="tab:red", label="front")
    unit = "seconds" if plan.task.cost_model.is_in_seconds else "gradient times"
    panel.set(xscale="log", yscale="log", xlabel=f"{unit} to target", ylabel="bytes uploaded")
    for axis, values in zip((panel.xaxis, panel.yaxis), zip(*points, strict=True), strict=True):
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(_labels("2346" if max(values) < 4 * min(values) else "25"))
    panel.legend(fontsize=8)


def _labels(digits: str) -> Callable[[float, int | None], str]:
    """Return a formatter that also labels these digits between decades: a front often lies within one."""

    def label(value: float, position: int | None = None) -> str:
        return f"{value:g}" if f"{value:e}"[0] in digits else ""

    return label
