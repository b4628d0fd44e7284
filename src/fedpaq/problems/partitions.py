"""Partitions: which samples each client holds, in O(samples + clients) memory.

Stored like a sparse matrix: client i holds ``indices[offsets[i]:offsets[i+1]]``. Neither the
sampling of participants nor a round's work ever walks over all clients.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpaq.arrays import AnyArray, Float64, Int64
from fedpaq.config import require_int, require_positive
from fedpaq.errors import ConfigError
from fedpaq.randomness import Key, Purpose, permutation

SMALL_ALPHA = 0.01  # below, gamma variates fall out of the range of doubles
LARGE_ALPHA = 1e200  # above, their sum does; all shares have long been equal


@dataclass(frozen=True, eq=False)
class Partition:
    """Sample numbers, client after client, and where each client's run begins."""

    indices: Int64  # (samples held,)
    offsets: Int64  # (num_clients + 1,)
    _copies: dict[torch.device, tuple[Tensor, Tensor]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("indices", "offsets"):
            values = np.asarray(getattr(self, name))
            if values.ndim != 1 or values.dtype.kind not in "iu":
                raise ConfigError(f"{name} of type {values.dtype} and shape {values.shape} is not a vector of integers")
            object.__setattr__(self, name, np.ascontiguousarray(values, np.int64))
        sizes = np.diff(self.offsets)
        if sizes.size == 0 or self.offsets[0] != 0 or self.offsets[-1] != self.indices.size:
            raise ConfigError(
                f"offsets={self.offsets} do not cut {self.indices.size} samples into clients; they must run "
                "from 0 to the number of samples, with one entry more than there are clients"
            )
        if sizes.min() < 1:
            raise ConfigError(f"client={int(sizes.argmin())} holds no samples; every client needs at least one")

    @property
    def num_clients(self) -> int:
        """n."""
        return int(self.offsets.size - 1)

    def sizes(self, clients: Int64 | None = None) -> Int64:
        """Return how many samples each of ``clients`` (default: all) holds [m]."""
        if clients is None:
            return np.diff(self.offsets)
        return self.offsets[clients + 1] - self.offsets[clients]

    def samples_per_step(self, clients: Int64, batch_size: int | None) -> Int64:
        """Return how many samples each of ``clients`` uses in a step: B, or for None all that it holds."""
        return self.sizes(clients) if batch_size is None else np.full(len(clients), batch_size)

    def samples_of(self, client: int) -> Int64:
        """Return the sample numbers of one client."""
        return self.indices[self.offsets[client] : self.offsets[client + 1]]

    def on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return indices and offsets on a device, copied there once."""
        if device not in self._copies:
            indices, offsets = torch.from_numpy(self.indices), torch.from_numpy(self.offsets)
            self._copies[device] = indices.to(device), offsets.to(device)
        return self._copies[device]

    @classmethod
    def from_lists(cls, samples: Any) -> Partition:
        """Build a partition from one sequence of sample numbers per client: a list, or a dict by client number.

        >>> Partition.from_lists([[0, 2], [1]]).sizes().tolist()
        [2, 1]
        """
        if isinstance(samples, Mapping):
            if set(samples) != set(range(len(samples))):
                raise ConfigError(f"clients are numbered 0..{len(samples) - 1}, but samples is a dict of other keys")
            samples = [samples[client] for client in range(len(samples))]
        if not isinstance(samples, Iterable):
            raise ConfigError(f"samples={samples!r} is not a list; give a list of sample numbers for each client")
        found = [np.asarray(run) for run in samples]
        for client, run in enumerate(found):
            if run.ndim == 0:
                raise ConfigError(
                    f"client={client} holds {run!r}, which is not a sequence; give each a list of samples"
                )
        runs = [run.ravel() for run in found]
        for client, run in enumerate(runs):
            if run.size and run.dtype.kind not in "iu":
                raise ConfigError(f"client={client} holds {run[0]!r}; sample numbers are integers")
        offsets = np.concatenate([[0], np.cumsum([run.size for run in runs])]).astype(np.int64)
        return cls(np.concatenate([np.zeros(0, np.int64), *runs]).astype(np.int64), offsets)


def iid(num_samples: int, num_clients: int, *, seed: int = 0, samples_per_client: int | None = None) -> Partition:
    """Deal shuffled samples evenly; sizes differ by at most one, or are ``samples_per_client`` [m].

    >>> iid(10, 3).sizes().tolist()
    [4, 3, 3]
    """
    require_int("num_samples", num_samples, 1)
    _require_enough(num_samples, num_clients)
    if samples_per_client is None:
        sizes = np.full(num_clients, num_samples // num_clients, np.int64)
        sizes[: num_samples % num_clients] += 1
    else:
        _require_enough(num_samples, num_clients, samples_per_client=samples_per_client)
        sizes = np.full(num_clients, samples_per_client, np.int64)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    order = permutation(Purpose.PARTITION, Key(seed=seed), num_samples)
    return Partition(order[: offsets[-1]], offsets)


def dirichlet(targets: Any, num_clients: int, *, alpha: float, seed: int = 0) -> Partition:
    """Give each label to the clients in Dirichlet(alpha) shares: small alpha, uneven clients.

    Every client first gets one sample, so none is empty; the rest follow the shares. Memory is
    O(samples + clients): one label's shares at a time.

    >>> dirichlet([0, 1] * 50, 4, alpha=0.5).sizes().sum()
    np.int64(100)
    """
    require_positive("alpha", alpha)
    alpha = float(alpha)
    labels = _labels(targets)
    _require_enough(labels.size, num_clients)
    order = permutation(Purpose.PARTITION, Key(seed=seed), labels.size)
    owner = np.empty(labels.size, np.int64)
    owner[order[:num_clients]] = np.arange(num_clients)
    rest = order[num_clients:]
    # Philox again, through NumPy's generator: gamma variates need rejection, hence state.
    generator = np.random.Generator(np.random.Philox(key=seed))
    for label in np.unique(labels):
        members = rest[labels[rest] == label]
        shares = np.cumsum(_gammas(generator, alpha, num_clients))
        owner[members] = np.searchsorted(shares / shares[-1], generator.random(members.size), side="right")
    return _group_by(owner, num_clients)


def _gammas(generator: np.random.Generator, alpha: float, count: int) -> Float64:
    """Draw gamma variates up to a common factor. Those of a small alpha are all too small for a double.

    G(a) is G(a + 1) U^(1 / a): its logarithm is not too small.
    """
    if alpha >= SMALL_ALPHA:
        return generator.standard_gamma(min(alpha, LARGE_ALPHA), count) + np.finfo(float).tiny
    logs = alpha * np.log(generator.standard_gamma(alpha + 1, count)) + np.log1p(-generator.random(count))
    with np.errstate(over="ignore"):
        return np.asarray(np.exp((logs - logs.max()) / alpha))


def by_label(targets: Any, num_clients: int, *, labels_per_client: int = 2, seed: int = 0) -> Partition:
    """Sort samples by label, cut them into shards, deal ``labels_per_client`` shards to each client.

    Shards are equal to within one sample, so one that begins where a label ends holds two labels;
    where the labels' sizes are multiples of a shard's, no client has more than ``labels_per_client``.

    >>> by_label([0, 0, 1, 1, 2, 2], 3, labels_per_client=1).sizes().tolist()
    [2, 2, 2]
    """
    labels = _labels(targets)
    _require_enough(labels.size, num_clients)
    _require_enough(labels.size, num_clients, labels_per_client=labels_per_client)
    shards = num_clients * labels_per_client
    shuffled = permutation(Purpose.PARTITION, Key(seed=seed), labels.size)
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    dealt = permutation(Purpose.PARTITION, Key(seed=seed, round=1), shards)
    shard_owner = np.empty(shards, np.int64)
    shard_owner[dealt] = np.arange(shards) // labels_per_client
    owner = np.empty(labels.size, np.int64)
    owner[by_class] = shard_owner[np.arange(labels.size) * shards // labels.size]
    return _group_by(owner, num_clients)


def shared(samples: Int64, num_clients: int) -> Partition:
    """Let every client hold all of these samples: 8 bytes per client and sample."""
    return Partition(np.tile(samples, num_clients), len(samples) * np.arange(num_clients + 1))


def _group_by(owner: Int64, num_clients: int) -> Partition:
    counts = np.bincount(owner, minlength=num_clients)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return Partition(np.argsort(owner, kind="stable").astype(np.int64), offsets)


def _labels(targets: Any) -> AnyArray:
    try:
        labels = np.asarray(targets.detach().cpu() if hasattr(targets, "detach") else targets)
    except ValueError:  # rows of several lengths
        labels = np.asarray(None)
    if labels.ndim != 1 or labels.dtype == object:
        raise ConfigError(
            f"targets.shape={labels.shape} is not one label per sample; pass a vector of whole numbers or names"
        )
    if labels.dtype.kind == "f" and not np.array_equal(labels, np.floor(labels)):
        raise ConfigError("targets hold fractions or NaN, not labels; pass whole numbers, or use iid")
    return labels


def _require_enough(num_samples: int, num_clients: int, **per_client: int) -> None:
    """Raise ConfigError unless every client can have a sample, or as many as the named setting wants."""
    for name, wanted in per_client.items():
        require_int(name, wanted, 1)
        if wanted * num_clients > num_samples:
            raise ConfigError(
                f"{name}={wanted} times num_clients={num_clients} exceeds the {num_samples} samples; "
                f"choose at most {num_samples // num_clients}"
            )
    require_int("num_clients", num_clients, 1, 2**32)
    if num_samples < num_clients:
        raise ConfigError(
            f"num_clients={num_clients} exceeds the {num_samples} samples to share; "
            f"every client needs at least one, so choose 1..{num_samples}"
        )
