"""The local work of a few clients in two runs."""

from __future__ import annotations

import numpy as np

import fedpaq
from fedpaq.clients import local_work


def work_of(problem, config, round=2):
    participants = np.stack([np.arange(config.clients_per_round), np.arange(config.clients_per_round) + 2])
    params = np.stack([problem.initial_params, problem.initial_params * np.float32(0.5)])
    second = fedpaq.FedPAQConfig(**{**config.to_dict(), "seed": 12, "step_size": 0.2})
    (work,) = local_work(problem, [config, second], round, params, participants)
    return work
