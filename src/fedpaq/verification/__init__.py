"""THE BOUNDS, HELD AGAINST RUNS: what is measured, how it compares, how it looks."""

from fedpaq.verification.checks import Check, Setting, check_non_convex, check_strongly_convex
from fedpaq.verification.measurement import mean_squared_gradients, squared_errors
from fedpaq.verification.slope import Slope, fit_slope

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
