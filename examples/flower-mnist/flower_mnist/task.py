"""What is learnt: the paper's first problem, bundled with fedpaq, and one client's share of it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

import fedpaq
from fedpaq.clients import train_one_client


@lru_cache
def load_problem(num_clients: int, seed: int) -> fedpaq.Problem:
    """Return logistic regression on digits 0 and 8, split among the clients."""
    return fedpaq.problems.load("mnist-logistic", num_clients=num_clients, seed=seed)


def training(run_config: Any) -> fedpaq.FedPAQConfig:
    """Return the settings of a client's local work."""
    local_steps = int(run_config["local-steps"])
    return fedpaq.FedPAQConfig(
        clients_per_round=int(run_config["clients-per-round"]),
        local_steps=local_steps,
        total_steps=local_steps * int(run_config["num-rounds"]),
        batch_size=int(run_config["batch-size"]),
        step_size=float(run_config["step-size"]),
        seed=int(run_config["seed"]),
    )


def train(problem: fedpaq.Problem, run_config: Any, round: int, client: int, params: np.ndarray) -> np.ndarray:
    """Take the client's local SGD steps, with the same minibatches as in the simulator."""
    return train_one_client(problem, training(run_config), round=round, client=client, params=params)
