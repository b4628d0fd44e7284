"""WHICH FEDPAQ: the local steps, cohort, levels and step size that are fastest on a given network."""

from fedpaq.planner.recommendation import Plan, plan
from fedpaq.planner.search_space import RoundSetting, SearchSpace
from fedpaq.planner.task import Task
from fedpaq.planner.validation import Choice

__all__ = ["Choice", "Plan", "SearchSpace", "RoundSetting", "Task", "plan"]
