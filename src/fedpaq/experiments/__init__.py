"""THE PAPER'S FIGURES and one beside them: as data, run, judged, plotted, reported."""

from fedpaq.experiments.claims import CLAIMS, Claim, judge
from fedpaq.experiments.curve import Curve, CurveSettings
from fedpaq.experiments.figures import FIGURES, Figure, Panel, PaperSetting
from fedpaq.experiments.output import Output
from fedpaq.experiments.plot import save_plots
from fedpaq.experiments.rate_claims import RATE_CLAIMS, judge_rates
from fedpaq.experiments.rate_plot import save_rate_plot
from fedpaq.experiments.rates import PLOTS, choose
from fedpaq.experiments.report import save_report
from fedpaq.experiments.runner import run_curve, run_figure

__all__ = [
    "CLAIMS",
    "FIGURES",
    "PLOTS",
    "RATE_CLAIMS",
    "Claim",
    "Curve",
    "CurveSettings",
    "Figure",
    "Output",
    "Panel",
    "PaperSetting",
    "choose",
    "judge",
    "judge_rates",
    "run_curve",
    "run_figure",
    "save_plots",
    "save_rate_plot",
    "save_report",
]
