"""THE BOUNDS, HELD AGAINST RUNS: what is measured, how it compares, how it looks."""

from fedpaq.verification.check import Check, Setting
from fedpaq.verification.measurement import mean_squared_gradients, squared_errors
from fedpaq.verification.slope import Slope, fit_slope
from fedpaq.verification.theorems import check_non_convex, check_strongly_convex

__all__ = [
    "Check",
    "Setting",
    "Slope",
    "check_non_convex",
    "check_strongly_convex",
    "fit_slope",
    "mean_squared_gradients",
    "squared_errors",
]
