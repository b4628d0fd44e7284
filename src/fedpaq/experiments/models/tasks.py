"""Tasks: a network, its data and its clients, and how it is trained. All was fixed before the first run.

Every client takes tau steps of the task's optimizer; step sizes rise over a twentieth of the rounds and fall along a
cosine. Their peak is tuned for each quantizer, by ``trial.tune``.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedpaq import problems
from fedpaq.arrays import Int64
from fedpaq.config import FedPAQConfig, WarmupCosine
from fedpaq.experiments.models.arms import CODED, FLOAT32, PLAIN, Arm
from fedpaq.experiments.models.corpus import library
from fedpaq.experiments.models.networks import ByteTransformer, next_byte_loss, resnet18
from fedpaq.problems import Partition, Problem
from fedpaq.problems.datasets.source import load_dataset

SEEDS, TUNING_SEED, PROBLEM_SEED = (0, 1, 2), 100, 0
TUNING_SAMPLES = 2000  # on whose loss step sizes are compared
CLIENTS, UNEVENNESS = 50, 0.3  # of the images; Dirichlet's alpha
IMAGES = 10_000  # the first ones, and a fifth as many for the test


@dataclass(frozen=True, eq=False)
class Loaded:
    """A problem, and the samples that no client holds."""

    problem: Problem
    test: Int64
    source: str  # of the data

    @cached_property
    def tested(self) -> Problem:
        """The problem with loss and accuracy those of the test samples."""
        return self.problem.evaluated_on(self.test)

    @cached_property
    def sampled(self) -> Problem:
        """The problem with the loss that of some training samples."""
        held = np.sort(self.problem.partition.indices)
        return self.problem.evaluated_on(held[:: max(1, held.size // TUNING_SAMPLES)])


@dataclass(frozen=True)
class Task:
    """What is trained, on whose data, for how long."""

    name: str
    title: str
    kind: str  # of ``LOADERS``
    measure: str  # "test accuracy (%)" or "bits per byte"
    rounds: int
    tuning_rounds: int
    batch_size: int
    step_sizes: tuple[float, ...]  # peaks that are tried first, a factor 2 apart
    optimizer: str = "sgd"
    clients_per_round: int = 10
    local_steps: int = 5
    precision: str = "bfloat16"
    tuned_as: Task | None = None  # whose step sizes it takes
    arms: tuple[Arm, ...] = PLAIN + CODED
    seeds: tuple[int, ...] = SEEDS
    options: dict[str, Any] = field(default_factory=dict, hash=False)  # of its loader

    @property
    def is_accuracy(self) -> bool:
        """Whether more is better."""
        return self.measure.startswith("test accuracy")

    def measured(self, loss: float, accuracy: float | None) -> float:
        """Return the measure of an evaluation on the test samples."""
        return 100 * accuracy if self.is_accuracy and accuracy is not None else loss / math.log(2)

    def load(self, data_dir: Path | None, device: str) -> Loaded:
        """Return its problem on a device."""
        found = LOADERS[self.kind](data_dir, **self.options)
        return replace(found, problem=found.problem.to(device))

    def config(self, step_size: float, seed: int, rounds: int | None = None) -> FedPAQConfig:
        """Return the config of a run whose step sizes have this peak."""
        rounds = rounds or self.rounds
        return FedPAQConfig(
            clients_per_round=self.clients_per_round,
            local_steps=self.local_steps,
            total_steps=rounds * self.local_steps,
            batch_size=self.batch_size,
            step_size=WarmupCosine(peak=step_size, rounds=rounds, warmup=rounds // 20),
            seed=seed,
            optimizer=self.optimizer,
            precision=self.precision,
        )

    @property
    def values(self) -> dict[str, Any]:
        """What its runs depend on, but for arm and seed."""
        names = ("kind", "rounds", "tuning_rounds", "batch_size", "optimizer", "clients_per_round", "local_steps")
        return {**{name: getattr(self, name) for name in (*names, "precision")}, **self.options}


def load_images(data_dir: Path | None, *, uneven: bool = False, width: int = 64, most: int = IMAGES) -> Loaded:
    """Return ResNet-18 with GroupNorm on CIFAR-10; ``uneven``: each class is dealt by a Dirichlet draw."""
    arrays = load_dataset("cifar10", data_dir=data_dir or os.environ.get("FEDPAQ_DATA") or None).arrays
    images, labels = arrays.x_train[:most], arrays.y_train[:most]
    test_images, test_labels = arrays.x_test[: most // 5], arrays.y_test[: most // 5]
    inputs = np.concatenate([images, test_images]).astype(np.float32) / 127.5 - 1
    targets = np.concatenate([labels, test_labels]).astype(np.int64)
    if uneven:
        partition = problems.dirichlet(labels, CLIENTS, alpha=UNEVENNESS, seed=PROBLEM_SEED)
    else:
        partition = problems.iid(len(labels), CLIENTS, seed=PROBLEM_SEED)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(PROBLEM_SEED)
        model = resnet18(width=width)
    problem = Problem(
        model=model, loss=torch.nn.functional.cross_entropy, inputs=inputs.transpose(0, 3, 1, 2).copy(),
        targets=targets, partition=partition, name="resnet18-gn",
    )  # fmt: skip
    test = np.arange(len(labels), len(targets))
    return Loaded(problem, test, f"CIFAR-10, {len(labels):,} images, {len(test):,} for the test")


def load_bytes(data_dir: Path | None, *, width: int = 256, layers: int = 6, length: int = 128, **more: Any) -> Loaded:
    """Return a byte transformer on Python's own library."""
    corpus = library(length, **more)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(PROBLEM_SEED)
        model = ByteTransformer(width, layers, length)
    ends = np.cumsum(corpus.sizes)[:-1]
    partition = Partition.from_lists(np.split(np.arange(corpus.num_training), ends))
    problem = Problem(
        model=model, loss=next_byte_loss, inputs=corpus.windows[:, :-1].copy(), targets=corpus.windows[:, 1:].copy(),
        partition=partition, name="byte-transformer",
    )  # fmt: skip
    return Loaded(problem, np.arange(corpus.num_training, len(corpus.windows)), corpus.name)


LOADERS = {"images": load_images, "bytes": load_bytes}

_RESNET = Task(
    "resnet-iid", "ResNet-18 with GroupNorm on CIFAR-10, dealt evenly", "images", "test accuracy (%)",
    rounds=150, tuning_rounds=40, batch_size=20, step_sizes=(0.01, 0.02, 0.04),
)  # fmt: skip
_TRANSFORMER = Task(
    "transformer", "Byte transformer on Python's library, a client per file", "bytes", "bits per byte",
    rounds=150, tuning_rounds=40, batch_size=16, step_sizes=(5e-4, 1e-3, 2e-3), optimizer="adamw:0.01",
)  # fmt: skip
_UNEVEN = replace(
    _RESNET, name="resnet-dirichlet", title="ResNet-18 with GroupNorm on CIFAR-10, dealt by Dirichlet 0.3",
    rounds=100, tuned_as=_RESNET, options={"uneven": True},
)  # fmt: skip
_LONG = replace(
    _RESNET, name="resnet-long", title="ResNet-18 with GroupNorm on CIFAR-10, three times the rounds",
    rounds=450, tuned_as=_RESNET, arms=(FLOAT32, PLAIN[3], PLAIN[5]), seeds=(0,),
)  # fmt: skip

TASKS = {task.name: task for task in (_RESNET, _TRANSFORMER, _UNEVEN, _LONG)}
