"""Graphs: steps captured on a GPU, and plain calls elsewhere."""

from __future__ import annotations

import torch

from clients.test_batched import problem_with, work_of
from fedpaq.clients import Batched
from fedpaq.clients.graphs import Graphs


def test_nothing_is_captured_on_a_cpu(rng):
    problem = problem_with("squared", rng)
    work, graphs = work_of(problem), Graphs()
    executor = Batched(graphs=graphs)
    first = executor.local_updates(problem, work)
    assert torch.equal(first, executor.local_updates(problem, work))
    assert graphs._seen == {}
