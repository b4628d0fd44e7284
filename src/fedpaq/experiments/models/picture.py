"""Picture: a study's measure against bytes sent: up alone, and both ways with and without coded downloads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpaq.experiments.curve import rounded
from fedpaq.experiments.models.arms import CODED, FLOAT32, PLAIN, Arm
from fedpaq.experiments.models.verdicts import Study
from fedpaq.experiments.plot import Look, draw_band, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

MEGABYTE = 1e6
_COLOURS = (("#0072B2", "o", "circle"), ("#D55E00", "s", "square"), ("#009E73", "^", "triangle-up"),
            ("#CC79A7", "v", "triangle-down"))  # fmt: skip
LOOKS = {
    FLOAT32: Look("#000000", "D", ":", "diamond-open", "dot", hollow=True),
    PLAIN[1]: Look("#E69F00", "X", "--", "x", "dash", hollow=True),
    PLAIN[2]: Look("#56B4E9", "P", "--", "cross", "dash", hollow=True),
    **{
        arm: Look(colour, marker, "-", named, "solid")
        for arm, (colour, marker, named) in zip(PLAIN[3:], _COLOURS, strict=True)
    },
    **{
        arm: Look(colour, marker, "--", f"{named}-open", "dash", hollow=True)
        for arm, (colour, marker, named) in zip(CODED, _COLOURS, strict=True)
    },
}
PANELS = (("bytes up", False, PLAIN), ("bytes both ways", True, (FLOAT32, *PLAIN[3:], *CODED)))


def save_picture(study: Study, folder: Path) -> list[Path]:
    """Write the picture as PNG and PDF and return the paths."""
    return save(lambda: draw(study), folder / f"models-{study.task.name}")


def draw(study: Study) -> Canvas:
    """Return the picture as a matplotlib figure."""
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(14, 5.2), layout="constrained")
    axes: Any = canvas.subplots(1, len(PANELS))
    for axis, (title, both_ways, arms) in zip(axes, PANELS, strict=True):
        for arm in shown(study, arms):
            sent = study.sent(arm, both_ways=both_ways).mean(axis=0)[1:] / MEGABYTE
            draw_band(axis, arm.label, sent, study.column(arm, "measure")[:, 1:], LOOKS[arm])
        axis.set(xscale="log", xlabel=f"{title} so far, all clients (MB)", ylabel=study.task.measure)
        axis.xaxis.set_major_formatter("{x:g}")
        axis.set_ylim(*limits(study))
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3, columnspacing=1.2)
    seeds = len(study.task.seeds)
    range_of = f"mean and range of {seeds} seeds" if seeds > 1 else "one seed"
    canvas.suptitle(f"{study.task.title}; {study.task.rounds} rounds, {range_of}", fontsize=10)
    return canvas


def panels(study: Study) -> list[dict[str, Any]]:
    """Return what the report draws: the same curves."""
    return [
        {
            "title": title,
            "range": limits(study),
            "curves": [
                {
                    "label": arm.label,
                    "look": look.plotly,
                    "step_size": study.step_sizes[arm],
                    "rounds": study.column(arm, "rounds")[0, 1:].tolist(),
                    "bytes": rounded(study.sent(arm, both_ways=both_ways).mean(axis=0)[1:]),
                    "mean": rounded(values.mean(axis=0)),
                    "low": rounded(values.min(axis=0)),
                    "high": rounded(values.max(axis=0)),
                }
                for arm in shown(study, arms)
                for look, values in [(LOOKS[arm], study.column(arm, "measure")[:, 1:])]
            ],
        }
        for title, both_ways, arms in PANELS
    ]


def shown(study: Study, arms: Sequence[Arm]) -> list[Arm]:
    """Return the arms that are finished and have more than one point."""
    return [arm for arm in arms if arm in study.runs and study.column(arm, "rounds").shape[1] > 1]


def limits(study: Study) -> tuple[float, float]:
    """Return the ends of the y axis: from the worst that float32 has after its first points to the best of all."""
    arms = [arm for arm in study.runs if study.column(arm, "rounds").shape[1] > 1]
    ends = [study.column(arm, "measure") for arm in arms]
    if study.task.is_accuracy:
        return 0.0, 1.05 * max(float(each.max()) for each in ends)
    low = min(float(each.min()) for each in ends)
    return 0.95 * low, float(study.column(FLOAT32, "measure")[:, 1].mean()) + 0.5
