"""Changes: the server sends what changed, coded, and adopts what it sent.

A client that holds x_j gets the changes since. One that holds nothing, or too old a model, gets a snapshot and the
changes since that, or the model as float32 where it is shorter. Nothing but the aggregate travels down, and every
holder of round k has the server's x_k to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpaq.arrays import AnyArray, Float32, Int64
from fedpaq.downlink.stream import NOTHING, Stream, take_up, to_arrays
from fedpaq.errors import ConfigError
from fedpaq.quantizers import as_quantizer, text_of


@dataclass(frozen=True)
class Changes:
    """Send changes coded by ``quantizer`` and snapshots coded by ``snapshot``: quantizers, or their texts.

    >>> Changes("rotated:0.5").name
    'rotated:0.5/rotated:8'
    """

    quantizer: Any = "rotated:1"
    snapshot: Any = "rotated:8"

    def __post_init__(self) -> None:
        for name in ("quantizer", "snapshot"):
            chosen = as_quantizer(getattr(self, name))
            if not hasattr(chosen, "approximate"):
                raise ConfigError(
                    f"{name}={text_of(chosen)!r} cannot code downloads: it may lose more than it is given, and what is "
                    "lost would grow from round to round; choose rotated:BITS or none"
                )
            object.__setattr__(self, name, chosen)

    @property
    def name(self) -> str:
        """Label for history and tables; what ``fedpaq.downlink.parse`` takes."""
        return f"{text_of(self.quantizer)}/{text_of(self.snapshot)}"

    def stream(self, seed: int, params: Float32) -> Stream:
        """Return what one server sends, from its first model (p,) on."""
        return Stream.begin(self.quantizer, self.snapshot, seed, params)

    def open(self, seeds: Sequence[int], num_clients: int, params: Float32) -> ChangesBroadcast:
        """Return the downloads of some runs, before their first round."""
        return ChangesBroadcast([self.stream(seed, params) for seed in seeds], num_clients)


class ChangesBroadcast:
    """A stream for each run, and for each client the last round that it holds."""

    def __init__(self, streams: list[Stream], num_clients: int) -> None:
        self.streams = streams
        self._held = np.full((len(streams), num_clients), NOTHING, np.int32)
        self._before: dict[int, Int64] = {}  # what the participants just served had held, by run

    @property
    def params(self) -> Float32:
        """The model of every run, as its clients will hold it: (runs, p)."""
        return np.stack([stream.params for stream in self.streams])

    def send(self, round: int, runs: Int64, participants: Int64) -> Int64:
        """Return the bytes that each of the participants (runs, r) received."""
        received = np.empty(participants.shape, np.int64)
        for row, (run, clients) in enumerate(zip(runs.tolist(), participants, strict=True)):
            self._before[run] = self._held[run, clients].astype(np.int64)
            received[row] = self.streams[run].prices(self._before[run])
            self._held[run, clients] = round
        return received

    def adopt(self, runs: Int64, params: Float32, mean: Any) -> Float32:
        """Return x_{k+1} of the given runs: what the clients will be sent."""
        moved = [self.streams[run].advance(mean[row], self._before[run]) for row, run in enumerate(runs.tolist())]
        return np.stack(moved)

    def to_arrays(self) -> dict[str, AnyArray]:
        """Return what is remembered between rounds."""
        return {**to_arrays(self.streams), "held": self._held}

    def take_up(self, params: Float32, arrays: Mapping[str, AnyArray]) -> None:
        """Become what ``to_arrays`` gave, with params (runs, p); raise ValueError or KeyError if that cannot be."""
        held = arrays["held"]
        if held.shape != self._held.shape or held.dtype != np.int32:
            raise ValueError(f"held {held.shape} {held.dtype}")
        take_up(self.streams, params, arrays)
        self._held = held.copy()
