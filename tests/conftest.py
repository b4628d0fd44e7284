"""Shared fixtures: small real problems, and where the datasets are."""

from __future__ import annotations

import os
from pathlib import Path

# Tests share the cores: one thread each, here and in what they start, or BLAS's threads wait for one another.
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before NumPy is imported

import numpy as np
import pytest
import torch
from hypothesis import settings

import fedpaq
from fedpaq.kernels import threads
from small_problems import make_problem

torch.set_num_threads(1)  # as above

# The same examples on every run, so that a change is judged by its own merits; `make check` looks for new ones.
# No deadlines: a first call may compile a kernel, and a busy machine is not a bug.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("exploring", derandomize=False, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

REPOSITORY = Path(__file__).resolve().parent.parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files of slow tests: they mostly wait, for processes that they started, and the rest goes on."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Folder with the real datasets; tests that need it are skipped where there is none."""
    folder = Path(os.environ.get("FEDPAQ_DATA", REPOSITORY.parent / "shared" / "data"))
    if not (folder / "mnist.npz").exists():
        pytest.skip(f"no datasets in {folder.name}/: set FEDPAQ_DATA")
    return folder


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
    return fedpaq.FedPAQConfig(clients_per_round=5, local_steps=3, total_steps=12, batch_size=4, step_size=0.1, seed=11)


@pytest.fixture(params=[1, 4], ids=["one thread", "four threads"])
def spread_over_threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels do all their jobs in the caller, then all of them on threads, however little there is to do."""
    monkeypatch.setattr(threads, "cores", lambda: request.param)
    monkeypatch.setattr(threads, "WORTH_A_THREAD", 1e-9)


@pytest.fixture
def rng() -> np.random.Generator:
    """A seeded NumPy generator for test inputs."""
    return np.random.default_rng(0)
