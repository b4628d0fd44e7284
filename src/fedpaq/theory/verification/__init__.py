"""THE BOUNDS, CHECKED AGAINST RUNS: what is measured, how it compares, how it looks."""

from fedpaq.theory.verification.check import BoundCurve, Check, CheckSetting, Slope, fit_slope
from fedpaq.theory.verification.measurement import mean_squared_gradients, squared_errors
from fedpaq.theory.verification.theorems import check_non_convex, check_strongly_convex

__all__ = [
    "BoundCurve",
    "Check",
    "CheckSetting",
    "Slope",
    "check_non_convex",
    "check_strongly_convex",
    "fit_slope",
    "mean_squared_gradients",
    "squared_errors",
]
