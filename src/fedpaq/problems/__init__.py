"""WHAT IS LEARNT: data + partition + model + loss."""

from fedpaq.problems.evaluation import Evaluation
from fedpaq.problems.named import describe, load, names, suggested_step_size
from fedpaq.problems.partitions import Partition, by_label, dirichlet, iid
from fedpaq.problems.problem import ExactConstants, Problem
from fedpaq.problems.synthetic import synthetic_logistic, synthetic_quadratic

__all__ = [
    "Evaluation",
    "ExactConstants",
    "Partition",
    "Problem",
    "by_label",
    "describe",
    "dirichlet",
    "iid",
    "load",
    "names",
    "suggested_step_size",
    "synthetic_logistic",
    "synthetic_quadratic",
]
