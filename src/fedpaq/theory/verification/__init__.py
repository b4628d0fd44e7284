"""THE BOUNDS, HELD AGAINST RUNS: what is measured, how it compares, how it looks."""

from fedpaq.theory.verification.check import Check, Setting
from fedpaq.theory.verification.measurement import mean_squared_gradients, squared_errors
from fedpaq.theory.verification.slope import Slope, fit_slope
from fedpaq.theory.verification.theorems import check_non_convex, check_strongly_convex

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
