"""RoundMean: Algorithm 1, line 11, over the uploads that arrived, in client order.

The mean is the server's own (``fedpaq.server``), the one the simulator takes, so both agree to the bit. It
needs O(p) memory and touches only non-zeros; a robust ``aggregation`` keeps the round's messages instead.

Exact floats, such as BatchNorm's statistics, go through the same aggregation as the model: a plain mean takes their
values. A robust one takes how far each client moved them, as it does with the model: clipped values would shrink.
"""

from collections.abc import Callable

import numpy as np

from fedpaq.arrays import Float32, Float64
from fedpaq.errors import DivergedError
from fedpaq.flower.layout import Layout
from fedpaq.flower.replies import Upload
from fedpaq.quantizers import RawMessage
from fedpaq.server.aggregation import Aggregation, Mean
from fedpaq.server.mean import MeanAccumulator

ONLY_RUN = 0


class RoundMean:
    """Takes uploads in, each with its weight; ``held`` are the exact arrays that the clients were sent."""

    def __init__(self, layout: Layout, aggregation: Aggregation | None = None, held: bytes | None = None) -> None:
        aggregation = aggregation or Mean()
        self._layout, self.weight = layout, 0.0
        self._accumulator = aggregation.start(1, layout.dimension)
        sent = _floats(layout, bytes(layout.exact_bytes) if held is None else held)
        self._origin = np.zeros_like(sent) if isinstance(self._accumulator, MeanAccumulator) else sent
        self._exact = aggregation.start(1, sent.size) if sent.size else None
        self._first = b""

    def add(self, upload: Upload) -> None:
        """Take one upload in; on WireFormatError everything is as it was."""
        if isinstance(self._accumulator, MeanAccumulator):
            self._accumulator.add_payload(upload.payload, ONLY_RUN, upload.key, upload.weight)
        else:
            self._accumulator.add_payload(upload.payload, ONLY_RUN, upload.key)
        self._add_exact(upload)
        self._first = self._first or upload.exact
        self.weight += upload.weight

    def _add_exact(self, upload: Upload) -> None:
        moved = _floats(self._layout, upload.exact) - self._origin
        message = RawMessage(moved)  # type: ignore[arg-type]  # in double precision: it is never encoded
        run = np.array([ONLY_RUN])
        if isinstance(self._exact, MeanAccumulator):
            self._exact.add([message], run, np.array([upload.weight]))
        elif self._exact is not None:
            self._exact.add([message], run)

    def apply(self, move: Callable[[Float64], Float32]) -> tuple[Float32, bytes]:
        """Return x_{k+1}, which ``move`` makes of the mean, and the exact arrays: floats combined as the model is,
        integers of the first upload.
        """
        moved = move(self._accumulator.mean()[ONLY_RUN])
        exact = self._first
        if self._exact is not None:
            exact = _with_floats(self._layout, exact, self._origin + self._exact.mean()[ONLY_RUN])
        if not np.isfinite(moved).all() or not np.isfinite(_floats(self._layout, exact)).all():
            raise DivergedError(
                "the mean of the uploads takes the model beyond float32; lower the step size of the clients, "
                "or set max_update_norm against a hostile one"
            )
        return moved, exact


def _floats(layout: Layout, exact: bytes) -> Float64:
    """Return the floats among the exact arrays, one after another."""
    found = [values.reshape(-1) for values in layout.exact_arrays(exact).values() if values.dtype.kind == "f"]
    return np.concatenate([np.zeros(0), *found])


def _with_floats(layout: Layout, exact: bytes, floats: Float64) -> bytes:
    """Return the exact arrays with other floats."""
    arrays, start = layout.exact_arrays(exact), 0
    for slot in layout.exact_slots:
        if arrays[slot.name].dtype.kind == "f":
            part = floats[start : start + slot.size].reshape(slot.shape)
            with np.errstate(over="ignore"):
                arrays[slot.name], start = part.astype(slot.dtype), start + slot.size
    return layout.exact(arrays)
