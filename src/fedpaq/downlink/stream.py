"""Stream: what one server sends down round after round, and the model that its clients hold.

    z_{k+1} = z_k + m_k                  where the server wants to be: the mean m_k of the uploads, nothing lost
    x_{k+1} = x_k + C(z_{k+1} - x_k)     where it is, and with it every client it sends to

What coding loses stays in z - x and goes with the next change (error feedback at the server: no client has to
remember it). From time to time a snapshot C(z) takes the place of a change, as a key frame does in a film.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from fedpaq import codec
from fedpaq.arrays import AnyArray, Float32, Int64
from fedpaq.errors import WireFormatError
from fedpaq.quantizers import Message, RawMessage
from fedpaq.randomness import Key

SERVER = 2**32 - 1  # the "client" whose key turns the server's frames
NOTHING = -1  # the round held by a client that holds no model


class Download(NamedTuple):
    """Payloads that lead from the round ``held`` (NOTHING: the first is a snapshot) to the server's round."""

    held: int
    payloads: list[bytes]


@dataclass(eq=False)
class Stream:
    """The server's model x, its aim z, and the frames that still serve somebody."""

    coder: Any  # of changes: has ``approximate``
    snapshot_coder: Any
    seed: int
    aim: Float32  # z: (p,)
    params: Float32  # x: (p,)
    round: int = 0
    start: int = 0  # the round of the last snapshot
    snapshot: bytes = b""  # empty once the model as float32 is shorter than snapshot and changes
    snapshot_bytes: int = 0
    changes: list[bytes] = field(default_factory=list)  # the last ones after the snapshot, the newest last

    @classmethod
    def begin(cls, coder: Any, snapshot_coder: Any, seed: int, params: Float32) -> Stream:
        """Return the stream before round 0; the server adopts a snapshot of its first model."""
        stream = cls(coder, snapshot_coder, seed, params, params)
        stream._take_snapshot()
        return stream

    def advance(self, mean: Any, held: Int64) -> Float32:
        """Move the aim by the mean (p,) and return x_{k+1}.

        ``held`` is the round that each client just served had held before. Those of the next round will be like
        them, one round later: if a change would cost them more bytes, they get a snapshot.
        """
        with np.errstate(over="ignore", invalid="ignore"):  # a diverged run is noticed by its recorder
            self.aim = np.asarray(self.aim + mean, np.float32)
            difference = self.aim - self.params
        self.round += 1
        if not np.isfinite(difference).all():
            self.params = self.aim
            return self.params
        message = self._coded(self.coder, difference)
        self.changes.append(codec.encode(message))
        next_held = np.where(held == NOTHING, NOTHING, np.minimum(held + 1, self.round - 1))
        if self.round > 1 and self.prices(next_held).mean() > self._next_snapshot_bytes():  # round 0 is all newcomers
            self._take_snapshot()
        else:
            self.params = changed(self.params, message)
            self._forget()
        return self.params

    def restart(self, params: Float32) -> Float32:
        """Go on from another model, as a strategy may want it, and return what the clients will hold of it."""
        self.aim = params
        self.round += 1
        self._take_snapshot()
        return self.params

    def prices(self, held: Int64) -> Int64:
        """Return the bytes that bring clients from the rounds they hold to this one."""
        chains = np.cumsum([0, *(len(change) for change in reversed(self.changes))])  # by rounds behind
        newcomer = self.snapshot_bytes + int(chains[-1]) if self.snapshot else self.dense_bytes
        behind = np.where(held < self.start, len(chains), np.minimum(self.round - held, len(chains)))
        return np.asarray(np.minimum(np.append(chains, newcomer)[behind], self.dense_bytes), np.int64)

    def download(self, held: int) -> Download:
        """Return what brings a client from the round it holds to this one, in as many bytes as ``prices`` says."""
        if held >= self.start and self.round - held <= len(self.changes):
            return Download(held, self.changes[len(self.changes) - (self.round - held) :])
        if self.snapshot:
            return Download(NOTHING, [self.snapshot, *self.changes])
        return self.whole()

    def whole(self) -> Download:
        """Return the model as float32."""
        return Download(NOTHING, [codec.encode(RawMessage(self.params))])

    @property
    def dense_bytes(self) -> int:
        """Bytes of the model as float32."""
        return codec.raw_bytes(self.params.size)

    def _take_snapshot(self) -> None:
        """Adopt a snapshot of the aim; the changes before it serve nobody any more."""
        message = self._coded(self.snapshot_coder, self.aim)
        self.params, self.snapshot = message.dequantize(), codec.encode(message)
        self.snapshot_bytes, self.start, self.changes = len(self.snapshot), self.round, []

    def _next_snapshot_bytes(self) -> int:
        """Return what a snapshot may take: the last may have been of zeros, which take nothing."""
        aimed_at = getattr(self.snapshot_coder, "target_bytes", lambda dimension: 0)
        return max(self.snapshot_bytes, int(aimed_at(self.aim.size)))

    def _forget(self) -> None:
        """Keep no frames that together are as long as the model."""
        while sum(map(len, self.changes)) >= self.dense_bytes:
            del self.changes[0]
        if self.snapshot_bytes + sum(map(len, self.changes)) >= self.dense_bytes:
            self.snapshot = b""

    def _coded(self, coder: Any, values: Float32) -> Message:
        message: Message = coder.approximate(values, key=frame_key(self.seed, self.round))
        return message


def frame_key(seed: int, round: int) -> Key:
    """Return the key of the frame that leads to a round."""
    return Key(seed=seed, round=round, client=SERVER)


def changed(params: Float32, change: Message) -> Float32:
    """Return x + d: float32, so that server and clients round alike."""
    with np.errstate(over="ignore"):
        return np.asarray(params + change.dequantize(), np.float32)


def receive(
    download: Download, params: Float32 | None, dimension: int, seed: int, round: int, held: int | None = None
) -> Float32:
    """Return the server's model of ``round``; ``params`` is that of the round ``held`` (else ``download.held``).

    The client's half, and the twin of ``Stream.advance``. A client may hold more than the server knows of.
    Raises WireFormatError.
    """
    first = round - len(download.payloads) + 1
    if download.held == NOTHING:
        params, held = None, NOTHING
    elif held is None:
        held = download.held
    if (params is None) != (download.held == NOTHING) or not download.held <= held <= round:
        raise WireFormatError(f"the download leads from round={download.held} to {round}, and the client holds {held}")
    for to, payload in enumerate(download.payloads, start=first):
        if to > held:
            message = codec.decode(payload, dimension=dimension, key=frame_key(seed, to))
            params = message.dequantize() if params is None else changed(params, message)
    if params is None:
        raise WireFormatError(f"the download to round={round} is empty, and the client holds no model")
    return params


def to_arrays(streams: Sequence[Stream]) -> dict[str, AnyArray]:
    """Return what streams remember apart from their params, as arrays for a checkpoint."""
    frames = [[stream.snapshot, *stream.changes] for stream in streams]
    numbers = [[each.round, each.start, each.snapshot_bytes, len(each.changes)] for each in streams]
    return {
        "aim": np.stack([stream.aim for stream in streams]),
        "numbers": np.array(numbers, np.int64),
        "sizes": np.array([len(frame) for each in frames for frame in each], np.int64),
        "frames": np.frombuffer(b"".join(frame for each in frames for frame in each), np.uint8),
    }


def take_up(streams: Sequence[Stream], params: Float32, arrays: Mapping[str, AnyArray]) -> None:
    """Become what ``to_arrays`` gave, with params (runs, p); raise ValueError if that cannot be."""
    aim, numbers, sizes, frames = (arrays[name] for name in ("aim", "numbers", "sizes", "frames"))
    counts = numbers[:, 3] + 1 if numbers.shape == (len(streams), 4) else np.zeros(0, np.int64)
    if (
        aim.shape != params.shape
        or aim.dtype != np.float32
        or (counts < 1).any()
        or sizes.shape != (counts.sum(),)
        or (sizes < 0).any()
        or frames.dtype != np.uint8
        or frames.size != sizes.sum()
        or not counts.size
    ):
        raise ValueError("downloads that do not fit together")
    parts = iter(np.split(frames, np.cumsum(sizes)[:-1]))
    for stream, row, z, x in zip(streams, numbers.tolist(), aim, params, strict=True):
        stream.round, stream.start, stream.snapshot_bytes, count = row
        stream.aim, stream.params = z.copy(), x.copy()
        stream.snapshot, *stream.changes = (next(parts).tobytes() for _ in range(count + 1))
