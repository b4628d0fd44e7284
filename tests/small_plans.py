"""Small tasks, settings and search spaces to plan with."""

from __future__ import annotations

import numpy as np

import fedpaq
from fedpaq.planner import Choice, RoundSetting, SearchSpace, Task
from fedpaq.planner.pilot import Finish
from fedpaq.problems import Partition, Problem, synthetic_logistic
from fedpaq.quantizers import Identity, LowPrecision

COST = fedpaq.CostModel.from_ratio(100)
PAID = fedpaq.CostModel(bandwidth=100.0, shift=0.5, scale=2.0)


def setting_of(tau, r, levels):
    """Return a round setting; no levels mean no quantizer."""
    return RoundSetting(tau, r, LowPrecision(levels) if levels else Identity())


def finish_of(rounds, uploaded=1.0, sending=0.0, seconds=0.0, slowest=0.0):
    """Return a finish whose seeds all uploaded as much."""
    runs = len(rounds)
    return Finish(tuple(rounds), (uploaded,) * runs, (2 * uploaded,) * runs, (sending,) * runs, seconds, slowest)


def choice_with(seconds, *, clients=5, sent=1000.0, setting=None, spread=0.0, rounds=(7, 8)):
    """Return a choice whose runs take ``seconds`` on average, ``spread`` apart."""
    runs = tuple(seconds + spread * side for side in (-1, 1) for _ in range(8))
    return Choice(
        setting=setting or setting_of(5, clients, 3),
        step_size=0.25,
        seconds=seconds,
        low=0.5 * seconds,
        high=2 * seconds,
        upload_bytes=0.25 * sent,
        download_bytes=0.75 * sent,
        first_hits=rounds,
        runs=runs,
    )


def space_of(local_steps, clients_per_round, levels, step_sizes):
    return SearchSpace(
        local_steps=local_steps, clients_per_round=clients_per_round, levels=levels, step_sizes=step_sizes
    )


def uneven_problem(sizes=(1, 1, 3)):
    """Clients with so many samples: 5/3 on average, which no integer is."""
    whole = synthetic_logistic(num_clients=5, samples_per_client=200, dimension=3, regularization=0.1)
    ends = np.cumsum(sizes)
    return Problem(
        model=whole.model,
        loss=whole.loss,
        inputs=whole.inputs,
        targets=whole.targets,
        partition=Partition.from_lists([np.arange(end - size, end) for size, end in zip(sizes, ends, strict=True)]),
        regularization=0.1,
    )


def make_task(**changes):
    values = {"problem": uneven_problem(), "target_loss": 0.5, "cost_model": PAID, "max_clients": 3}
    return Task(**{**values, **changes})
