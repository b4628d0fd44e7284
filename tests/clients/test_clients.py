"""Executors: same draws, same updates as a hand-written SGD loop, whatever the chunking."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from fedpaq.clients import Dense, Sequential, Vectorised
from small_work import work_of


def sgd_by_hand(problem, work):
    """The same local steps with torch.optim.SGD on the module itself."""
    updates = []
    for job in range(len(work)):
        received = torch.from_numpy(work.params[work.run_of[job]].copy())
        module = problem.model
        saved = [value.detach().clone() for value in module.parameters()]
        try:
            nn.utils.vector_to_parameters(received.clone(), module.parameters())
            optimizer = torch.optim.SGD(
                module.parameters(), lr=float(work.step_sizes[work.run_of[job]]), weight_decay=problem.regularization
            )
            for samples in work.samples[job]:
                optimizer.zero_grad()
                problem.loss(module(problem.inputs[samples]), problem.targets[samples]).backward()
                optimizer.step()
            updates.append(nn.utils.parameters_to_vector(module.parameters()).detach() - received)
        finally:
            for value, old in zip(module.parameters(), saved, strict=True):
                value.data = old
    return torch.stack(updates).numpy()


def executors_for(problem):
    chosen = [Sequential(), Vectorised(), Vectorised(chunk_size=1), Vectorised(chunk_size=3)]
    return [*chosen, Dense()] if problem.dense_network is not None else chosen


def test_every_executor_agrees_with_a_hand_written_sgd_loop(problem, config):
    work = work_of(problem, config)
    expected = sgd_by_hand(problem, work)
    for executor in executors_for(problem):
        updates = np.asarray(executor.local_updates(problem, work))
        assert updates.dtype == np.float32
        assert np.abs(updates - expected).max() < 1e-5, executor
