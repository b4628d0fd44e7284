"""A small problem, and a task on it that a few rounds solve."""

from __future__ import annotations

import pytest

import fedpaq
from fedpaq.planner import Task
from small_plans import COST


@pytest.fixture(scope="module")
def problem():
    return fedpaq.problems.synthetic_logistic(num_clients=8, samples_per_client=20, dimension=6, regularization=0.01)


@pytest.fixture(scope="module")
def task(problem):
    return Task(problem=problem, target_loss=0.56, cost_model=COST, max_clients=8, batch_size=5)
