"""WHICH FEDPAQ: the local steps, cohort, quantizer and step size that are fastest on a given network."""

from fedpaq.planner.recommendation import Plan, plan
from fedpaq.planner.schedule import Schedule
from fedpaq.planner.search_space import SearchSpace
from fedpaq.planner.task import Task
from fedpaq.planner.validation import Choice
from fedpaq.theory.round_setting import RoundSetting

__all__ = ["Choice", "Plan", "RoundSetting", "Schedule", "SearchSpace", "Task", "plan"]
