"""Downloads: how the model goes to a client, whole or as changes to what the client holds.

A message with changes says which run and frame they lead to, from which frame on, and a digest of the result. The
client's mod keeps the model in a file between messages (``kept_model``). Where anything is missing or different it
answers NEEDS, and gets the whole model in the same round: a lost file costs one download, never a wrong model.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from fedpaq.arrays import AnyArray, Float32
from fedpaq.downlink.stream import NOTHING, Download, Stream, take_up, to_arrays
from fedpaq.flower import protocol


@dataclass(frozen=True)
class Sent:
    """A model on its way to one client: its arrays, what the client must know of them, and their bytes."""

    records: dict[str, Any]  # of the message, by name
    fields: dict[str, Any]  # of its fedpaq record
    nbytes: int


@dataclass
class Downloads:
    """The server's half of coded downloads: the stream of frames, and the frame that each client holds."""

    stream: Stream
    held: dict[int, int] = field(default_factory=dict)  # by client; absent: nothing
    _before: list[int] = field(default_factory=list)  # what the participants of the open round held

    def send(self, client: int, name: str, exact: bytes, run: str, *, whole: bool = False) -> Sent:
        """Return the model for a client, ``whole`` if it cannot use what it holds; its app finds it under ``name``."""
        stream = self.stream
        download = stream.whole() if whole else stream.download(self.held.get(client, NOTHING))
        frames = b"".join(download.payloads)
        fields = {
            "run": run,
            "frame": stream.round,
            "since": download.held,
            "sizes": " ".join(str(len(payload)) for payload in download.payloads),
            "digest": digest(stream.params),
            "exact": exact,
        }
        return Sent(protocol.model_records(protocol.FRAMES, frames, name), fields, len(frames) + len(exact))

    def open_round(self, clients: list[int]) -> None:
        """Remember what the participants of a round held before it."""
        self._before = [self.held.get(client, NOTHING) for client in clients]

    def answered(self, client: int, record: Mapping[str, Any]) -> None:
        """Believe a client that says which frame it holds: a false answer harms only its own downloads."""
        holds = record.get("holds")
        if isinstance(holds, int) and NOTHING < holds <= self.stream.round:
            self.held[client] = holds
        else:
            self.held.pop(client, None)

    def advance(self, mean: Any) -> Float32:
        """Move the model by the mean of the uploads, and return what clients will hold."""
        return self.stream.advance(mean, np.array(self._before or [NOTHING], np.int64))

    def to_arrays(self) -> dict[str, AnyArray]:
        """Return what must be remembered between rounds."""
        held = np.array(list(self.held.items()), np.int64).reshape(-1, 2)
        return {**to_arrays([self.stream]), "held": held}

    def take_up(self, params: Float32, arrays: Mapping[str, AnyArray]) -> None:
        """Become what ``to_arrays`` gave; raise ValueError or KeyError if that cannot be."""
        held = arrays["held"]
        if held.ndim != 2 or held.shape[1] != 2:
            raise ValueError(f"held {held.shape}")
        take_up([self.stream], params[None], arrays)
        self.held = dict(held.tolist())


def digest(params: Float32) -> bytes:
    """Return 16 bytes that tell one model from another."""
    return hashlib.blake2b(np.ascontiguousarray(params, "<f4").tobytes(), digest_size=16).digest()


def download_in(asked: Mapping[str, Any], frames: bytes) -> Download:
    """Return the download of a message."""
    ends = accumulate([int(size) for size in asked["sizes"].split()], initial=0)
    return Download(asked["since"], [frames[start:end] for start, end in pairwise(ends)])
