"""WHAT THE PAPER PROVES: step sizes, constants and bounds of Theorems 1 and 2."""

from fedpaq.theory.assumptions import Assumptions, Condition, Variant
from fedpaq.theory.estimators import Estimate, Estimates, estimate
from fedpaq.theory.heterogeneity import HeterogeneousBound
from fedpaq.theory.non_convex import NonConvexBound, NonConvexStepSize
from fedpaq.theory.strongly_convex import StronglyConvexBound, StronglyConvexStepSize

__all__ = [
    "Assumptions",
    "Condition",
    "Estimate",
    "Estimates",
    "HeterogeneousBound",
    "NonConvexBound",
    "NonConvexStepSize",
    "StronglyConvexBound",
    "StronglyConvexStepSize",
    "Variant",
    "estimate",
]
