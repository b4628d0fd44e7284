"""Rates: a sixth figure, which the paper does not have: loss against real bytes, ``Rotated`` beside s.

Each problem has one plot at its figure's fixed r and tau: s = 1, 5, 10 and no quantization, and ``Rotated`` at four
rates. The rates were fixed before any of its curves ran:

    the payload of s, s = 1, 5, 10, in bytes: the mean over a run's uploads, on the seed where it is least,
    rounded down; and twice the last.

No upload is longer than its rate, so on no seed does ``Rotated`` send more than the s it stands beside. Step
sizes of all its curves are tuned by one rule, on the same seeds; the paper's figures have a later one.
"""

from dataclasses import replace

from fedpaq.errors import unknown_name
from fedpaq.experiments.figures import FIGURES, Figure, Panel, PaperSetting

NAME, MODELS = "rates", "models"
OTHERS = (NAME, MODELS, "all")  # what can be reproduced besides a figure of the paper
MATCHED = ("s = 1", "s = 5", "s = 10")  # whose bytes the first rates are
LABELS = (*(f"Rotated, bytes of {levels}" for levels in MATCHED), "Rotated, twice those")
RATES = {  # bytes an upload
    "mnist": (30, 64, 88, 176),
    "cifar10-92k": (318, 1172, 2003, 4006),
    "cifar10-248k": (546, 2087, 3664, 7328),
    "cifar100": (613, 2264, 4005, 8010),
    "fashion": (287, 1045, 1816, 3632),
}


def _beside(figure: Figure) -> Figure:
    """Return the plot of one problem."""
    levels = figure.panel("levels")
    fixed = levels.curves["s = 1"]
    rotated = {
        label: PaperSetting(None, fixed.clients_per_round, fixed.local_steps, f"rotated:payload_bytes={size}")
        for label, size in zip(LABELS, RATES[figure.name], strict=True)
    }
    panel = Panel(NAME, figure.title, levels.fixed, {**levels.curves, **rotated})
    return replace(figure, name=f"{NAME}-{figure.name}", panels=(panel,), beside=figure.name)


PLOTS = {plot.name: plot for plot in map(_beside, FIGURES.values())}


def choose(names: list[str]) -> list[Figure]:
    """Return the figures called ``names``, or all of the paper's for "all": those in its order, then the plots.

    The study "models" is no figure.

    >>> [figure.name for figure in choose(["fashion", "mnist"])]
    ['mnist', 'fashion']
    """
    for name in names:
        if name not in (*FIGURES, *OTHERS):
            raise unknown_name("figure", name, [*FIGURES, *OTHERS])
    chosen = [figure for figure in FIGURES.values() if "all" in names or figure.name in names]
    return chosen + (list(PLOTS.values()) if NAME in names else [])
