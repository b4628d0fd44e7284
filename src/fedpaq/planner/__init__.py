"""WHICH FEDPAQ: the local steps, cohort, levels and step size that are fastest on a given network."""

from fedpaq.planner.final import Choice
from fedpaq.planner.recommendation import Plan, plan
from fedpaq.planner.search_space import SearchSpace, Shape
from fedpaq.planner.task import Task

__all__ = ["Choice", "Plan", "SearchSpace", "Shape", "Task", "plan"]
