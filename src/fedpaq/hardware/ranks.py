"""Ranks: the processes that share a run's local work, as ``torchrun`` starts them.

Every rank holds the whole problem and the same params, does a share of each round's jobs, and receives
the payloads of the others, over gloo. All of them return the same history; only the first evaluates,
saves and prints.

    with join() as ranks:                                   # ALONE, if torchrun did not start this process
        history = fedpaq.train(problem, config, ranks=ranks)
"""

import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from fedpaq.errors import LostRankError

TIMEOUT_SECONDS = 600.0  # longest wait for the slowest rank's share of a round, or for an evaluation
TORCHRUN_SETS = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass
class Traffic:
    """Bytes this rank has received from others, padding included."""

    payloads: int = 0


@dataclass(frozen=True, eq=False)
class Ranks:
    """One process of ``size``; alone by default. Every rank must call the same methods in the same order."""

    rank: int = 0
    size: int = 1
    store: Any = None
    traffic: Traffic = field(default_factory=Traffic)

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that evaluates, saves and prints."""
        return self.rank == 0

    def share(self, jobs: int) -> slice:
        """Return this rank's part of some jobs: parts are contiguous, and their sizes differ by at most one.

        >>> [Ranks(rank, 3).share(7) for rank in range(3)]
        [slice(0, 2, None), slice(2, 4, None), slice(4, 7, None)]
        """
        return slice(self.rank * jobs // self.size, (self.rank + 1) * jobs // self.size)

    def all_gather(self, data: bytes) -> list[bytes]:
        """Return the bytes of every rank, in order of rank."""
        if self.size == 1:
            return [data]
        with _contact(self):
            sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
            dist.all_gather(sizes, torch.tensor([len(data)]))
            longest = max(int(size) for size in sizes)
            padded = torch.zeros(longest, dtype=torch.uint8)
            padded[: len(data)] = _tensor(data)
            everyone = [torch.empty_like(padded) for _ in range(self.size)]
            dist.all_gather(everyone, padded)
        self.traffic.payloads += (self.size - 1) * (longest + 8)
        return [row[: int(size)].numpy().tobytes() for row, size in zip(everyone, sizes, strict=True)]

    def broadcast(self, data: bytes) -> bytes:
        """Return the first rank's bytes; what the others pass is ignored."""
        if self.size == 1:
            return data
        with _contact(self):
            size = torch.tensor([len(data)])
            dist.broadcast(size, 0)
            received = _tensor(data).clone() if self.is_first else torch.empty(int(size), dtype=torch.uint8)
            dist.broadcast(received, 0)
        return received.numpy().tobytes()

    def reports_failure(self) -> bool:
        """Whether this rank failed first and so reports why; the others end in silence."""
        if self.store is None:
            return True
        try:
            return bool(self.store.add("fedpaq/ended", 1) == 1)
        except RuntimeError:  # the store went with the rank that kept it
            return True


ALONE = Ranks()


def dense_bytes(size: int, ranks: int) -> int:
    """Return the bytes each rank receives when ``size`` bytes are summed around a ring."""
    return 2 * (ranks - 1) * size // ranks


@contextmanager
def join(device: str = "cpu", timeout_seconds: float = TIMEOUT_SECONDS) -> Iterator[Ranks]:
    """Join the ranks that ``torchrun`` started, or yield ``ALONE`` if it started none.

    An error ends every rank: the first to fail raises it, the others leave with exit code 2.
    """
    if not all(name in os.environ for name in TORCHRUN_SETS) or os.environ["WORLD_SIZE"] == "1":
        yield ALONE
        return
    ranks = _start(device, timedelta(seconds=timeout_seconds))
    try:
        yield ranks
        _wait_for_all(ranks, "done", timeout_seconds)  # a rank that left early would look lost to the others
        _hang_up()
        _wait_for_all(ranks, "gone", timeout_seconds)
    except Exception:
        if not ranks.reports_failure():
            raise SystemExit(2) from None
        raise
    finally:
        _hang_up()


def _wait_for_all(ranks: Ranks, stage: str, timeout_seconds: float) -> None:
    """Wait until every rank has reached this stage, or the store is gone.

    Through the store, not gloo's barrier: a gloo thread that frees a tensor while Python shuts down
    aborts the process (pytorch issue 190489), so gloo must not be used last.
    """
    deadline = time.monotonic() + timeout_seconds
    with suppress(RuntimeError):
        here = ranks.store.add(f"fedpaq/{stage}", 1)
        while here < ranks.size and time.monotonic() < deadline:
            time.sleep(0.005)
            here = ranks.store.add(f"fedpaq/{stage}", 0)


def _hang_up() -> None:
    if dist.is_initialized():
        with suppress(RuntimeError):
            dist.destroy_process_group()


def _start(device: str, timeout: timedelta) -> Ranks:
    """Connect to the other ranks; each gets its share of the cores and, in turn, a GPU."""
    local_rank, local_size = (int(os.environ.get(f"LOCAL_{name}", 0)) for name in ("RANK", "WORLD_SIZE"))
    if device.startswith("cuda") and torch.cuda.is_available():
        torch.cuda.set_device(local_rank % torch.cuda.device_count())
    if local_size > 1 and "numba" not in sys.modules:  # numba reads this once, when it is imported
        os.environ.setdefault("NUMBA_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // local_size)))
    try:
        store, rank, size = next(rendezvous("env://", timeout=timeout))
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timeout)
    except RuntimeError as error:
        address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise LostRankError(
            f"rank={os.environ['RANK']} of {os.environ['WORLD_SIZE']} could not join the others at {address} "
            f"({_first_line(error)}); start every rank, and check that they reach one another"
        ) from error
    return Ranks(rank, size, store)


@contextmanager
def _contact(ranks: Ranks) -> Iterator[None]:
    """Turn the backend's errors into LostRankError."""
    try:
        yield
    except RuntimeError as error:
        raise LostRankError(
            f"rank={ranks.rank} of {ranks.size} lost contact with another ({_first_line(error)})"
        ) from error


def _tensor(data: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(data, np.uint8).copy())


def _first_line(error: Exception) -> str:
    """Return what the backend says, without the place in its sources."""
    said = str(error).splitlines() or [type(error).__name__]
    return re.sub(r"^\[[^]]*\]\s*", "", said[0]).rstrip(".")[:200]
