"""THE PAPER'S FIGURES: as data, run, judged, plotted, reported."""

from fedpaq.experiments.claims import CLAIMS, Claim, judge
from fedpaq.experiments.curve import Curve, CurveSettings
from fedpaq.experiments.figures import FIGURES, Figure, Panel, PaperSetting, choose
from fedpaq.experiments.output import Output
from fedpaq.experiments.plot import save_plots
from fedpaq.experiments.report import save_report
from fedpaq.experiments.runner import run_curve, run_figure

__all__ = [
    "CLAIMS",
    "FIGURES",
    "Claim",
    "Curve",
    "CurveSettings",
    "Figure",
    "Output",
    "Panel",
    "PaperSetting",
    "choose",
    "judge",
    "run_curve",
    "run_figure",
    "save_plots",
    "save_report",
]
