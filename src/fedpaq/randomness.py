"""Stateless randomness: every draw is a pure function of (seed, purpose, round, client, index).

Philox 4x32-10 turns a 128-bit counter and a 64-bit key into four 32-bit words. Here

    key     = (seed low, seed high)
    counter = (block low, round, client, purpose << 24 | block high)

so a result cannot depend on chunking, executor, number of processes or an interruption, and a
resumed run needs no generator state. This file is the NumPy twin, the version to read and the
oracle of the compiled kernels (``fedpaq.kernels.numba``) and of the Triton kernel.

Word order. Draw i of a stream is word w of block b with, inside groups of 256 draws,
i = 256 g + 64 w + l and b = 64 g + l: four runs of 64 lanes, which SIMD units and GPUs fill
without shuffling. Half-words 2i and 2i + 1 are the low and the high half of draw i, as they lie in memory.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from fedpaq.arrays import Float64, Int64, UInt32, UInt64
from fedpaq.config import require_int
from fedpaq.errors import ConfigError
from fedpaq.kernels import numba as compiled

MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
WEYL = (0x9E3779B9, 0xBB67AE85)
PHILOX_ROUNDS = 10
GROUP = 256  # draws per group
LANES = 64  # blocks per group


class Purpose(IntEnum):
    """What a stream is for; streams of different purposes never overlap."""

    PARTICIPANTS = 1
    MINIBATCH = 2
    DITHER = 3
    COMPUTE_TIME = 4
    PARTITION = 5
    INITIAL_PARAMS = 6
    DATA = 7
    CHECK = 8
    MODULE = 9
    DITHER_LOW = 10
    ROTATION = 11
    ROTATION_AGAIN = 12
    ROTATION_THIRD = 13
    SCALE = 14


@dataclass(frozen=True, kw_only=True)
class Key:
    """Names one client's stream in one round of one run.

    >>> Key(seed=0, round=3, client=17)
    Key(seed=0, round=3, client=17)
    """

    seed: int
    round: int = 0
    client: int = 0

    def __post_init__(self) -> None:
        require_int("seed", self.seed, 0, 2**64 - 1)
        require_int("round", self.round, 0, 2**32 - 1)
        require_int("client", self.client, 0, 2**32 - 1)
        for name in ("seed", "round", "client"):
            if type(value := getattr(self, name)) is not int:  # NumPy's, which kernels may not take
                object.__setattr__(self, name, operator.index(value))

    @staticmethod
    def require(key: object) -> None:
        """Raise ConfigError unless ``key`` is a Key."""
        if not isinstance(key, Key):
            raise ConfigError(f"key={key!r} is not a Key; write e.g. fedpaq.Key(seed=0, round=3, client=17)")


@dataclass(frozen=True, eq=False)
class Keys:
    """The keys of many clients as arrays; indexing gives each as a ``Key``."""

    seeds: UInt64  # (r,)
    rounds: Int64  # (r,)
    clients: Int64  # (r,)

    def __post_init__(self) -> None:
        for name, dtype in (("seeds", np.uint64), ("rounds", np.int64), ("clients", np.int64)):
            given = np.ascontiguousarray(getattr(self, name))  # as kernels take it
            if given.ndim != 1 or given.shape != np.shape(self.seeds) or given.dtype != dtype:
                raise ConfigError(
                    f"{name} of shape={given.shape}, dtype={given.dtype} do not fit the keys; "
                    f"pass (r,) {dtype.__name__}, as many as seeds"
                )
            object.__setattr__(self, name, given)

    @classmethod
    def of(cls, keys: Keys | Sequence[Key]) -> Keys:
        """Return keys as arrays."""
        if isinstance(keys, Keys):
            return keys
        keys = list(keys) if isinstance(keys, Iterable) else [keys]
        for key in keys:
            Key.require(key)
        return cls(
            np.array([key.seed for key in keys], np.uint64),
            np.array([key.round for key in keys], np.int64),
            np.array([key.client for key in keys], np.int64),
        )

    def __len__(self) -> int:
        return len(self.seeds)

    def __getitem__(self, at: int) -> Key:
        return Key(seed=int(self.seeds[at]), round=int(self.rounds[at]), client=int(self.clients[at]))

    def __iter__(self) -> Iterator[Key]:
        return (self[at] for at in range(len(self)))


def philox(counter: UInt32, key: UInt32) -> UInt32:
    """Apply Philox 4x32-10: counters (..., 4) and keys (..., 2) to words (..., 4).

    >>> [f"{word:08x}" for word in philox(np.zeros(4, np.uint32), np.zeros(2, np.uint32))]
    ['6627e8d5', 'e169c58d', 'bc57ac4c', '9b00dbd8']
    """
    c0, c1, c2, c3 = (counter[..., i].astype(np.uint64) for i in range(4))
    k0, k1 = (key[..., i].astype(np.uint64) for i in range(2))
    low32, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    for _ in range(PHILOX_ROUNDS):
        product0, product1 = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            (product1 >> shift) ^ c1 ^ k0,
            product1 & low32,
            (product0 >> shift) ^ c3 ^ k1,
            product0 & low32,
        )
        k0 = (k0 + np.uint64(WEYL[0])) & low32
        k1 = (k1 + np.uint64(WEYL[1])) & low32
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)


def words_numpy(purpose: Purpose, key: Key, start: int, count: int) -> UInt32:
    """Return draws start..start+count of a stream; the slow twin of ``words``."""
    index = np.arange(start, start + count, dtype=np.uint64)
    group, within = index // np.uint64(GROUP), index % np.uint64(GROUP)
    block = group * np.uint64(LANES) + within % np.uint64(LANES)
    word = within // np.uint64(LANES)
    counter = np.empty((count, 4), np.uint32)
    counter[:, 0] = block & np.uint64(0xFFFFFFFF)
    counter[:, 1] = key.round
    counter[:, 2] = key.client
    counter[:, 3] = (np.uint64(purpose) << np.uint64(24)) | (block >> np.uint64(32))
    seed = int(key.seed)  # a NumPy integer may be too narrow for the mask
    halves = np.array([seed & 0xFFFFFFFF, seed >> 32], np.uint32)
    blocks = philox(counter, halves)  # (count, 4)
    return blocks[np.arange(count), word.astype(np.intp)]


def halves_numpy(purpose: Purpose, key: Key, count: int) -> npt.NDArray[np.uint16]:
    """Return the first ``count`` half-words of a stream."""
    draws = words_numpy(purpose, key, 0, (count + 1) // 2)
    return draws.astype("<u4").view("<u2").astype(np.uint16)[:count]


def words(purpose: Purpose, key: Key, count: int, start: int = 0) -> UInt32:
    """Return ``count`` uniform 32-bit words of the stream, from draw ``start`` on."""
    at_once = count < 2**15 and "numba" not in sys.modules  # importing it takes longer than these draws
    kernels = None if at_once else compiled.load("philox")
    if kernels is None:
        return words_numpy(purpose, key, start, count)
    out = np.empty(count, np.uint32)
    kernels.words(int(purpose), key.seed, key.round, key.client, start, out)
    return out


def uniforms(purpose: Purpose, key: Key, count: int, start: int = 0) -> Float64:
    """Return doubles in (0, 1): the centre of each word's interval, so never 0 or 1."""
    return (words(purpose, key, count, start).astype(np.float64) + 0.5) * 2.0**-32


def normals(purpose: Purpose, key: Key, count: int) -> Float64:
    """Return standard normal doubles (Box-Muller)."""
    half = (count + 1) // 2
    u = uniforms(purpose, key, 2 * half)
    radius, angle = np.sqrt(-2.0 * np.log(u[:half])), 2.0 * np.pi * u[half:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]


def permutation(purpose: Purpose, key: Key, count: int) -> Int64:
    """Return a uniform permutation of 0..count-1: sort by 64-bit draws, ties by index."""
    draws = words(purpose, key, 2 * count).astype(np.uint64)
    order = np.argsort((draws[:count] << np.uint64(32)) | draws[count:], kind="stable")
    return order.astype(np.int64)


def sample_without_replacement(key: Key, num_clients: int, clients_per_round: int) -> Int64:
    """Draw S_k: ``clients_per_round`` distinct clients, every subset equally likely, ascending.

    Floyd's algorithm: r draws and a set of r entries, whatever ``num_clients`` is.

    >>> sample_without_replacement(Key(seed=0, round=3), 10**9, 3).size
    3
    """
    require_int("num_clients", num_clients, 1, 2**32)
    require_int("clients_per_round", clients_per_round, 1, num_clients)
    draws = words(Purpose.PARTICIPANTS, key, 2 * clients_per_round).tolist()
    chosen: set[int] = set()
    for position, j in enumerate(range(num_clients - clients_per_round, num_clients)):
        draw = draws[2 * position] << 32 | draws[2 * position + 1]
        candidate = (draw * (j + 1)) >> 64
        chosen.add(j if candidate in chosen else candidate)
    return np.array(sorted(chosen), dtype=np.int64)


def first_uniforms(purpose: Purpose, seeds: UInt64, round: int, clients: Int64) -> Float64:
    """Return draw 0 in (0, 1) of each job's stream, as ``uniforms`` would: (jobs,)."""
    first = np.empty(len(clients), np.uint32)
    kernels = compiled.load("philox")
    if kernels is not None:
        kernels.first_words(int(purpose), seeds, round, clients, first)
    else:
        first[:] = _blocks(purpose, seeds, round, clients, 1)[:, 0, 0]
    return (first.astype(np.float64) + 0.5) * 2.0**-32


def minibatches(seeds: UInt64, round: int, clients: Int64, sizes: Int64, count: int) -> Int64:
    """Draw ``count`` positions in 0..sizes[j]-1 with replacement for each job j.

    Job j is client ``clients[j]`` of the run with seed ``seeds[j]``. Result: (jobs, count).
    Positions are (word * size) >> 32: bias below size / 2^32.
    """
    kernels = compiled.load("philox")
    if kernels is not None:
        positions = np.empty((len(clients), count), np.int64)
        kernels.minibatches(seeds, round, clients, sizes, positions)
        return positions
    groups = -(-count // GROUP)
    blocks = _blocks(Purpose.MINIBATCH, seeds, round, clients, groups * LANES)  # (jobs, blocks, 4)
    by_word = blocks.reshape(len(clients), groups, LANES, 4).swapaxes(2, 3)
    draws = by_word.reshape(len(clients), groups * GROUP)[:, :count].astype(np.uint64)
    return (draws * sizes.astype(np.uint64)[:, None] >> np.uint64(32)).astype(np.int64)


def _blocks(purpose: Purpose, seeds: UInt64, round: int, clients: Int64, count: int) -> UInt32:
    """Return the first ``count`` (up to 2^32) blocks of each job's stream: (jobs, count, 4)."""
    counter = np.empty((len(clients), count, 4), np.uint32)
    counter[..., 0] = np.arange(count)
    counter[..., 1] = round
    counter[..., 2] = clients[:, None]
    counter[..., 3] = int(purpose) << 24
    key = np.stack([seeds & np.uint64(0xFFFFFFFF), seeds >> np.uint64(32)], axis=-1).astype(np.uint32)
    return philox(counter, key[:, None, :])
