"""Real updates: what clients of the named problems would upload, caught on their way to the wire."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

import fedpaq

PROBLEMS = ("mnist-logistic", "fashion-mlp", "cifar10-mlp-92k")
RESNET, RESNET_STEP_SIZE = "resnet18-gn", 0.005  # as ``fedpaq reproduce models`` tuned it
RESNET_ROUNDS = (10, 50, 100, 150)
DATA = Path(os.environ.get("FEDPAQ_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))


class Recorder:
    """Quantizes nothing and keeps the updates of some rounds."""

    name = "recorder"

    def __init__(self, rounds: tuple[int, ...]) -> None:
        self.rounds = rounds
        self.updates: dict[int, np.ndarray] = {}
        self._round = 0
        self._quantizer = fedpaq.Identity()

    def variance_bound(self, dimension: int) -> float:
        """Return q."""
        return self._quantizer.variance_bound(dimension)

    def quantize(self, update: Any, *, key: fedpaq.Key) -> Any:
        """Quantize one update."""
        return self.quantize_batch(update[None], [key])[0]

    def quantize_batch(self, updates: Any, keys: Any) -> Any:
        """Quantize the r updates of a round and remember them."""
        self._round += 1
        found = np.array(updates, np.float32)
        if self._round in self.rounds:
            self.updates[self._round] = found
        return self._quantizer.quantize_batch(found, keys)


def resnet_updates() -> dict[int, np.ndarray]:
    """Return what a client of ResNet-18 uploads in some rounds, with the tuned step size; nothing without data."""
    from fedpaq.experiments.models.tasks import load_images

    try:
        problem = load_images(DATA if DATA.exists() else None).problem
    except fedpaq.DatasetError as error:
        print(f"skipped {RESNET}: {error}")
        return {}
    recorder = Recorder(RESNET_ROUNDS)
    config = fedpaq.FedPAQConfig(
        clients_per_round=2,
        local_steps=5,
        total_steps=5 * max(RESNET_ROUNDS),
        batch_size=20,
        step_size=RESNET_STEP_SIZE,
        seed=0,
    )
    fedpaq.train(problem.evaluated_on(np.arange(10)), config, quantizer=recorder, evaluate_every=0)
    return {number: updates[0] for number, updates in recorder.updates.items()}


def real_updates(name: str, count: int = 5) -> np.ndarray | None:
    """Return updates (count, p) after ten rounds of tau = 5, or None where the dataset is missing."""
    try:
        problem = fedpaq.problems.load(name, num_clients=50, seed=0, data_dir=DATA if DATA.exists() else None)
    except fedpaq.DatasetError as error:
        print(f"skipped {name}: {error}")
        return None
    recorder = Recorder((10,))
    config = fedpaq.FedPAQConfig(clients_per_round=count, local_steps=5, total_steps=50, step_size=0.1, seed=0)
    fedpaq.train(problem, config, quantizer=recorder, evaluate_every=0)
    return recorder.updates[10]
