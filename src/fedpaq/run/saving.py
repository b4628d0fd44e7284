"""SavedRun: the state of ``train`` and ``sweep`` between two rounds, kept in a checkpoint.

Randomness is stateless, so the state is small: the rounds done, the params and the records of
every run. A run resumed from it ends bit-identical to one that was never interrupted. What the run
is (problem, data, configs, quantizer, ...) is stored too, and a checkpoint of another run is refused.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpaq.config import require_int
from fedpaq.errors import CheckpointError, LostRankError
from fedpaq.hardware.ranks import ALONE, Ranks
from fedpaq.run.recorder import Meter
from fedpaq.storage import checkpoint as files
from fedpaq.storage.atomic_file import StrPath
from fedpaq.storage.checkpoint import Arrays
from fedpaq.storage.lock import hold

Float32 = npt.NDArray[np.float32]
KIND = "fedpaq run"
MARGIN_BYTES = 2**25  # header and records, on top of the params


@dataclass(frozen=True)
class Checkpoint:
    """Save to ``path`` after every ``every`` rounds and after the last.

    If the file exists, the run continues from it, or with ``resume=False`` is refused. A file of
    another run is always refused; nothing is overwritten.

    >>> Checkpoint("run.ckpt", every=10)
    Checkpoint(path='run.ckpt', every=10, resume=True)
    """

    path: StrPath
    every: int = 1
    resume: bool = True

    def __post_init__(self) -> None:
        require_int("every", self.every, 1)


class SavedRun:
    """Knows how many rounds are done, and saves after each."""

    def __init__(
        self, meter: Meter, params: Float32, checkpoint: Checkpoint | None = None, ranks: Ranks = ALONE
    ) -> None:
        self._meter, self._params, self._checkpoint, self._ranks = meter, params, checkpoint, ranks
        self.rounds_done = 0

    def start(self, identity: dict[str, Any]) -> None:
        """Record the state before training, or take up what the first rank's checkpoint holds."""
        self._identity = identity
        state = b""
        if self._checkpoint is not None and files.exists(self._checkpoint.path):
            self._resume(self._checkpoint)
            state = self._packed()
        state = self._ranks.broadcast(state)
        if not state:
            self._meter.start(self._params)
            self._save()
        elif not self._ranks.is_first:
            self._unpack(state)

    def rounds(self) -> Iterator[int]:
        """Yield the rounds left to do, k = 0, 1, ..., saving after each; none once every run has diverged."""
        for round in range(self.rounds_done, self._meter.num_rounds):
            if not self._meter.running().size:
                return
            yield round
            self.rounds_done = round + 1
            last = self.rounds_done == self._meter.num_rounds
            if self._checkpoint is not None and (last or self.rounds_done % self._checkpoint.every == 0):
                self._save()

    def _save(self) -> None:
        if self._checkpoint is None:
            return
        diverged, records = self._meter.state()
        header = {"kind": KIND, "run": self._identity, "rounds_done": self.rounds_done, "diverged": diverged}
        files.save(self._checkpoint.path, header, {"params": self._params, **records})

    def _resume(self, checkpoint: Checkpoint) -> None:
        path = str(checkpoint.path)
        if not checkpoint.resume:
            raise CheckpointError(
                f"checkpoint={path!r} exists; pass --resume (resume=True) to continue its run, "
                "or choose another file"
            )
        header, arrays = files.load(path, max_bytes=2 * self._params.nbytes + MARGIN_BYTES * len(self._params))
        if header.get("kind") != KIND:
            raise CheckpointError(f"checkpoint={path!r} is a {header.get('kind')!r}, not a {KIND!r}")
        differences = differing(header.get("run"), self._identity)
        if differences:
            raise CheckpointError(
                f"checkpoint={path!r} is of another run: {'; '.join(differences[:3])}; "
                "resume with the settings it was started with, or choose another file"
            )
        try:
            self._restore(header, arrays)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CheckpointError(f"checkpoint={path!r} holds an impossible state ({error})") from error

    def _restore(self, header: dict[str, Any], arrays: Arrays) -> None:
        params = arrays.pop("params")
        if params.shape != self._params.shape or params.dtype != np.float32:
            raise ValueError(f"params {params.shape} {params.dtype}")
        require_int("rounds_done", header["rounds_done"], 0, self._meter.num_rounds)
        self._meter.restore(header["rounds_done"], header["diverged"], arrays)
        if not np.isfinite(params[self._meter.running()]).all():
            raise ValueError("params are not finite")
        self._params[:] = params
        self.rounds_done = header["rounds_done"]

    def _packed(self) -> bytes:
        """Return the state for the other ranks: they need not reach the first one's disk."""
        diverged, records = self._meter.state()
        header = json.dumps({"rounds_done": self.rounds_done, "diverged": diverged}).encode()
        arrays: dict[str, Any] = {"header": np.frombuffer(header, np.uint8), "params": self._params, **records}
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)
        return buffer.getvalue()

    def _unpack(self, state: bytes) -> None:
        with np.load(io.BytesIO(state), allow_pickle=False) as stored:
            arrays = dict(stored)
        self._restore(json.loads(arrays.pop("header").tobytes()), arrays)


@contextmanager
def saved_run(
    checkpoint: StrPath | Checkpoint | None, meter: Meter, params: Float32, ranks: Ranks = ALONE
) -> Iterator[SavedRun]:
    """Start a run, or continue the one in ``checkpoint`` by changing ``meter`` and ``params``.

    Without a checkpoint nothing is saved. With one, no other process can work on it meanwhile; the
    first rank reads and writes it.
    """
    chosen = Checkpoint(checkpoint) if isinstance(checkpoint, str | os.PathLike) else checkpoint
    mine = chosen if ranks.is_first else None
    with nullcontext() if mine is None else hold(mine.path):
        run = SavedRun(meter, params, mine, ranks)
        try:
            run.start({} if mine is None else meter.identity())
            yield run
        except LostRankError as error:
            raise LostRankError(f"{error} in round={run.rounds_done + 1}; {_way_on(chosen)}") from error


def _way_on(checkpoint: Checkpoint | None) -> str:
    if checkpoint is None:
        return "nothing was saved: run with a checkpoint to be able to resume"
    often = "round" if checkpoint.every == 1 else f"{checkpoint.every} rounds"
    return (
        f"checkpoint={str(checkpoint.path)!r}, saved every {often}, holds the last finished state: "
        "run the same command again with --resume (resume=True)"
    )


def differing(saved: Any, here: Any, name: str = "") -> list[str]:
    """Return a line for each leaf in which two JSON values differ.

    >>> differing({"quantizer": {"levels": 1}}, {"quantizer": {"levels": 2}})
    ['quantizer.levels=1 there but 2 here']
    """
    if isinstance(saved, dict) and isinstance(here, dict):
        keys = [*here, *(key for key in saved if key not in here)]
        front = f"{name}." if name else ""
        return [line for key in keys for line in differing(saved.get(key), here.get(key), f"{front}{key}")]
    if isinstance(saved, list) and isinstance(here, list) and len(saved) == len(here):
        pairs = enumerate(zip(saved, here, strict=True))
        return [line for at, (a, b) in pairs for line in differing(a, b, f"{name}[{at}]")]
    return [] if saved == here else [f"{name}={_short(saved)} there but {_short(here)} here"]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
