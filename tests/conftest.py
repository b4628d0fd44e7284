"""Shared fixtures: small real problems, and where the datasets are."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fedpaq

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Folder with the real datasets; tests that need it are skipped where there is none."""
    folder = Path(os.environ.get("FEDPAQ_DATA", REPOSITORY.parent / "shared" / "data"))
    if not (folder / "mnist.npz").exists():
        pytest.skip(f"no datasets in {folder.name}/: set FEDPAQ_DATA")
    return folder


def make_problem(kind: str, num_clients: int = 8, samples: int = 160) -> fedpaq.Problem:
    """Return a small problem of one of three kinds, the same at every call."""
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(samples, 1, 6, 6, generator=generator)
    labels = torch.randint(0, 3, (samples,), generator=generator)
    inputs[:, 0, 0, 0] += labels.float()
    partition = fedpaq.problems.iid(samples, num_clients, seed=1)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        if kind == "logistic":
            return fedpaq.Problem(
                model=nn.Linear(36, 1),
                loss=nn.functional.binary_cross_entropy_with_logits,
                inputs=inputs.flatten(1),
                targets=(labels > 0).float()[:, None],
                partition=partition,
                regularization=0.01,
            )
        if kind == "mlp":
            model = nn.Sequential(nn.Linear(36, 12), nn.ReLU(), nn.Linear(12, 7), nn.ReLU(), nn.Linear(7, 3))
            return fedpaq.Problem(
                model=model,
                loss=nn.functional.cross_entropy,
                inputs=inputs.flatten(1),
                targets=labels,
                partition=partition,
            )
        model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3))
        return fedpaq.Problem(
            model=model,
            loss=nn.functional.cross_entropy,
            inputs=inputs,
            targets=labels,
            partition=partition,
        )


@pytest.fixture(scope="session", params=["logistic", "mlp", "convnet"])
def problem(request: pytest.FixtureRequest) -> fedpaq.Problem:
    """Each of the three kinds in turn."""
    return make_problem(request.param)


@pytest.fixture(scope="session")
def logistic() -> fedpaq.Problem:
    """The logistic problem only."""
    return make_problem("logistic")


@pytest.fixture
def config() -> fedpaq.FedPAQConfig:
    """A short run."""
    return fedpaq.FedPAQConfig(
        clients_per_round=5, local_steps=3, total_steps=12, batch_size=4, step_size=0.1, seed=11
    )


@pytest.fixture
def rng() -> np.random.Generator:
    """A seeded NumPy generator for test inputs."""
    return np.random.default_rng(0)
