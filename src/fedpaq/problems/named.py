"""Named problems: the paper's five, and two synthetic ones.

Samples are always the first ones of the training part, in the published order, so a problem is the
same whether its data came from a subset file or the full dataset. The seed decides the partition
and the initial weights.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import nn

from fedpaq.arrays import AnyArray, Float32, UInt8
from fedpaq.config import require_int, require_path
from fedpaq.errors import ConfigError, DatasetError, unknown_name
from fedpaq.problems.datasets import npz
from fedpaq.problems.datasets.catalogue import Arrays, DatasetSpec
from fedpaq.problems.datasets.source import load_dataset
from fedpaq.problems.partitions import Partition, by_label, dirichlet, iid
from fedpaq.problems.problem import Problem
from fedpaq.problems.relu_network import relu_network, zero_linear
from fedpaq.problems.synthetic import synthetic_logistic, synthetic_quadratic

NUM_SAMPLES = 10_000  # the paper's 50 x 200, and its "10K samples"
PARTITIONS = ("iid", "dirichlet", "by-label")


@dataclass(frozen=True, kw_only=True)
class LoadRequest:
    """The arguments of ``load``, as a problem's builder receives them."""

    name: str
    num_clients: int
    seed: int
    samples_per_client: int | None
    partition: str
    alpha: float
    labels_per_client: int
    data_dir: str | Path | None
    regularization: float | None

    @property
    def num_samples(self) -> int:
        """How many samples to take."""
        if self.samples_per_client is None:
            return NUM_SAMPLES
        return self.num_clients * self.samples_per_client

    def share(self, labels: AnyArray) -> Partition:
        """Split samples with these labels among the clients."""
        if self.partition == "dirichlet":
            return dirichlet(labels, self.num_clients, alpha=self.alpha, seed=self.seed)
        if self.partition == "by-label":
            return by_label(labels, self.num_clients, labels_per_client=self.labels_per_client, seed=self.seed)
        return iid(len(labels), self.num_clients, seed=self.seed)


def _mnist_logistic(request: LoadRequest) -> Problem:
    images, digits = _first(request, npz.bundled(), "the bundled file")
    labels = (digits == 8).astype(np.float32)
    return Problem(
        model=zero_linear(784, 1),  # p = 785, starts from zero
        loss=nn.functional.binary_cross_entropy_with_logits,
        inputs=images.reshape(len(images), -1).astype(np.float32) / np.float32(255),
        targets=labels[:, None],
        partition=request.share(digits),
        # On all p parameters, bias too, so that it is the problem's strong convexity mu.
        regularization=1.0 / len(images) if request.regularization is None else request.regularization,
        name=request.name,
    )


@dataclass(frozen=True)
class DenseClassifier:
    """Builds a dense network with these hidden widths on a dataset, under cross entropy."""

    dataset: str
    hidden: tuple[int, ...]

    def __call__(self, request: LoadRequest) -> Problem:
        """Build the problem."""
        data = load_dataset(self.dataset, data_dir=request.data_dir)
        images, labels = _first(request, data.arrays, f"file={str(data.source.path)!r}")
        inputs = _standardised(images, data.spec)
        widths = (inputs.shape[1], *self.hidden, data.spec.num_labels)
        return Problem(
            model=relu_network(widths, seed=request.seed),
            loss=nn.functional.cross_entropy,
            inputs=inputs,
            targets=labels.astype(np.int64),
            partition=request.share(labels),
            regularization=request.regularization or 0.0,
            name=request.name,
        )


@dataclass(frozen=True)
class Synthetic:
    """Builds a synthetic problem, whose clients are alike; it has defaults of its own."""

    make: Callable[..., Problem]

    def __call__(self, request: LoadRequest) -> Problem:
        """Build the problem."""
        if request.partition != "iid":
            raise ConfigError(f"partition={request.partition!r} is not offered by {request.name}; choose 'iid'")
        given = {"samples_per_client": request.samples_per_client, "regularization": request.regularization}
        chosen = {name: value for name, value in given.items() if value is not None}
        return self.make(num_clients=request.num_clients, seed=request.seed, **chosen)


@dataclass(frozen=True)
class ProblemEntry:
    """A problem's builder, its dataset (None: nothing to fetch), a step size that works, what it is."""

    build: Callable[[LoadRequest], Problem]
    dataset: str | None
    step_size: float
    summary: str


PROBLEMS = {
    "mnist-logistic": ProblemEntry(
        _mnist_logistic, None, 0.5, "regularised logistic regression, MNIST digits 0 and 8 (bundled), p = 785"
    ),
    # The paper gives no width for its one-hidden-layer networks. 128 makes 101,770 parameters, the
    # size of its CIFAR-10 network; 100 is one unit per label, so the layer is not a bottleneck.
    "fashion-mlp": ProblemEntry(
        DenseClassifier("fashion-mnist", (128,)),
        "fashion-mnist",
        0.1,
        "dense network 784-128-10 on Fashion-MNIST, p = 101,770",
    ),
    "cifar10-mlp-92k": ProblemEntry(
        DenseClassifier("cifar10", (29,) * 4),
        "cifar10",
        0.05,
        "dense network 3072-29-29-29-29-10 on CIFAR-10, p = 92,027",
    ),
    "cifar10-mlp-248k": ProblemEntry(
        DenseClassifier("cifar10", (75,) * 4),
        "cifar10",
        0.05,
        "dense network 3072-75-75-75-75-10 on CIFAR-10, p = 248,335",
    ),
    "cifar100-mlp": ProblemEntry(
        DenseClassifier("cifar100", (100,)), "cifar100", 0.05, "dense network 3072-100-100 on CIFAR-100, p = 317,400"
    ),
    "synthetic-quadratic": ProblemEntry(
        Synthetic(synthetic_quadratic), None, 0.05, "strongly convex quadratic: L, mu, sigma and optimum known, p = 20"
    ),
    "synthetic-logistic": ProblemEntry(
        Synthetic(synthetic_logistic), None, 0.5, "small logistic regression for up to millions of clients, p = 10"
    ),
}


def names() -> tuple[str, ...]:
    """Return the names ``load`` knows."""
    return tuple(PROBLEMS)


def describe(name: str) -> str:
    """Say in one line what the problem called ``name`` is.

    >>> describe("cifar10-mlp-92k")
    'dense network 3072-29-29-29-29-10 on CIFAR-10, p = 92,027'
    """
    return _entry(name).summary


def suggested_step_size(name: str) -> float:
    """Return a step size that works for the problem with a few local steps; tune it for best results."""
    return _entry(name).step_size


def load(
    name: str,
    *,
    num_clients: int = 50,
    seed: int = 0,
    samples_per_client: int | None = None,
    partition: str = "iid",
    alpha: float | None = None,
    labels_per_client: int | None = None,
    data_dir: str | Path | None = None,
    regularization: float | None = None,
) -> Problem:
    """Return the problem called ``name``, shared among ``num_clients`` [n] clients.

    Image problems take the first 10,000 training samples, or ``num_clients * samples_per_client``,
    and split them by ``partition``: "iid", "dirichlet" (with ``alpha``, 0.5 unless given) or
    "by-label" (with ``labels_per_client``, 2 unless given). Datasets are looked for in ``data_dir``, by
    default the folder that the environment variable FEDPAQ_DATA names. ``regularization`` None means the
    problem's own: one over the number of samples for logistic regression, where it acts on all
    parameters and so is mu, and 0 otherwise. Pixels are divided by 255 for ``mnist-logistic`` and
    standardised per channel, with the full dataset's mean and deviation, for the networks.

    >>> problem = load("mnist-logistic", num_clients=50, seed=0)
    >>> problem.dimension, problem.partition.sizes()[:3].tolist()
    (785, [200, 200, 200])
    """
    require_int("num_clients", num_clients, 1, 2**32)
    require_int("seed", seed, 0, 2**64 - 1)
    if samples_per_client is not None:
        require_int("samples_per_client", samples_per_client, 1)
    if partition not in PARTITIONS:
        raise unknown_name("partition", partition, PARTITIONS)
    for setting, value, its in (("alpha", alpha, "dirichlet"), ("labels_per_client", labels_per_client, "by-label")):
        if value is not None and partition == "iid":
            raise ConfigError(f"{setting}={value!r} has no meaning with partition='iid'; write partition={its!r}")
    if data_dir is not None:
        require_path("data_dir", data_dir, "/path/to/data")
    request = LoadRequest(
        name=name,
        num_clients=num_clients,
        seed=seed,
        samples_per_client=samples_per_client,
        partition=partition,
        alpha=0.5 if alpha is None else alpha,
        labels_per_client=2 if labels_per_client is None else labels_per_client,
        data_dir=os.environ.get("FEDPAQ_DATA") or None if data_dir is None else data_dir,
        regularization=regularization,
    )
    return _entry(name).build(request)


def _entry(name: str) -> ProblemEntry:
    if name not in PROBLEMS:
        raise unknown_name("problem", name, PROBLEMS)
    return PROBLEMS[name]


def _first(request: LoadRequest, arrays: Arrays, source: str) -> tuple[UInt8, UInt8]:
    wanted, there = request.num_samples, len(arrays.x_train)
    if wanted > there and request.samples_per_client is not None:
        raise ConfigError(
            f"samples_per_client={request.samples_per_client} times num_clients={request.num_clients} "
            f"exceeds the {there} samples of {source}; choose at most {there // request.num_clients}"
        )
    if wanted > there:
        raise DatasetError(f"{source} holds {there} training samples; {request.name} needs {wanted}")
    return arrays.x_train[:wanted], arrays.y_train[:wanted]


def _standardised(images: UInt8, spec: DatasetSpec) -> Float32:
    """Return (pixel / 255 - mean) / deviation per channel, flat: (N, pixels) float32."""
    channels = images.reshape(len(images), -1, len(spec.mean)).astype(np.float32)
    mean = np.array(spec.mean, np.float32) * np.float32(255)
    channels -= mean
    channels /= np.array(spec.deviation, np.float32) * np.float32(255)
    return channels.reshape(len(images), -1)
