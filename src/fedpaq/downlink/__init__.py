"""DOWNLINK: how the server's model reaches the participants, and what that takes. Line 3 of Algorithm 1.

A downlink also says what the server's next model is (line 11), since a server that sends less than its whole
model must itself adopt what it sends: then every holder of round k has the server's x_k to the bit.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from fedpaq.arrays import AnyArray, Float32, Int64
from fedpaq.config import require_instance_with
from fedpaq.downlink.changes import Changes
from fedpaq.downlink.dense import Dense
from fedpaq.errors import unknown_name
from fedpaq.quantizers.registry import find, names


class Broadcast(Protocol):
    """The downloads of some runs, from their first round on, and what must be remembered for them."""

    @property
    def params(self) -> Float32:
        """Before round 0: x_0 of every run as its clients will hold it, (runs, p)."""

    def send(self, round: int, runs: Int64, participants: Int64) -> Int64:
        """Send x_k to the participants (runs, r) of the given runs; return the bytes each received (runs, r)."""

    def adopt(self, runs: Int64, params: Float32, mean: Any) -> Float32:
        """Return x_{k+1} of the given runs from x_k (runs, p) and the mean of the uploads (runs, p)."""

    def to_arrays(self) -> dict[str, AnyArray]:
        """Return what is remembered between rounds, for a checkpoint."""

    def take_up(self, params: Float32, arrays: Mapping[str, AnyArray]) -> None:
        """Become what ``to_arrays`` gave, with params (runs, p); raise ValueError or KeyError if that cannot be."""


class Downlink(Protocol):
    """A way to send the model."""

    @property
    def name(self) -> str:
        """Label for history and tables."""

    def open(self, seeds: Sequence[int], num_clients: int, params: Float32) -> Broadcast:
        """Return the downloads of one run for each seed, from x_0 (p,) on."""


def parse(text: str) -> Downlink:
    """Return the downlink that a text names: ``dense``, or the quantizer of changes and maybe that of snapshots.

    >>> parse("dense"), parse("rotated:1").name, parse("rotated:0.5/none").name
    (Dense(), 'rotated:1/rotated:8', 'rotated:0.5/none')
    """
    if text.strip() == "dense":
        return Dense()
    name = text.partition("/")[0].partition(":")[0].strip()
    if name not in names():
        coding = [each for each in names() if hasattr(find(each), "approximate")]
        raise unknown_name("downlink", name, ["dense", *coding])
    return Changes(*(part.strip() for part in text.split("/", 1)))


def as_downlink(given: Downlink | str) -> Downlink:
    """Return a downlink given as one or as its text."""
    if isinstance(given, str):
        return parse(given)
    require_instance_with("downlink", given, ("name", "open"), "Dense(), Changes('rotated:0.5'), 'rotated:0.5'")
    return given


__all__ = ["Broadcast", "Changes", "Dense", "Downlink", "as_downlink", "parse"]
