"""WHAT IS LEARNT: data + partition + model + loss."""

from fedpaq.problems.partitions import Partition, by_label, dirichlet, iid
from fedpaq.problems.problem import Evaluation, Known, Problem

__all__ = ["Evaluation", "Known", "Partition", "Problem", "by_label", "dirichlet", "iid"]
