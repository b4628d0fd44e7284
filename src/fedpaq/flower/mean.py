"""RoundMean: Algorithm 1, line 11, over the uploads that arrived, in client order.

The mean is the server's own (``fedpaq.server``), the one the simulator takes, so both agree to the bit. It
needs O(p) memory and touches only non-zeros; a robust ``aggregation`` keeps the round's messages instead.
"""

from collections.abc import Callable

import numpy as np

from fedpaq.arrays import Float32, Float64
from fedpaq.errors import DivergedError
from fedpaq.flower.layout import Layout
from fedpaq.flower.replies import Upload
from fedpaq.server.aggregation import Aggregation, Mean
from fedpaq.server.mean import MeanAccumulator

ONLY_RUN = 0


class RoundMean:
    """Takes uploads in, each with its weight."""

    def __init__(self, layout: Layout, aggregation: Aggregation | None = None) -> None:
        self._layout, self.weight = layout, 0.0
        self._accumulator = (aggregation or Mean()).start(1, layout.dimension)
        self._exact: dict[str, Float64] = {}
        self._first = b""

    def add(self, upload: Upload) -> None:
        """Take one upload in; on WireFormatError everything is as it was."""
        if isinstance(self._accumulator, MeanAccumulator):
            self._accumulator.add_payload(upload.payload, ONLY_RUN, upload.key, upload.weight)
        else:
            self._accumulator.add_payload(upload.payload, ONLY_RUN, upload.key)
        for name, values in self._layout.exact_arrays(upload.exact).items():
            if values.dtype.kind == "f":
                self._exact[name] = self._exact.get(name, 0.0) + upload.weight * values.astype(np.float64)
        self._first = self._first or upload.exact
        self.weight += upload.weight

    def apply(self, move: Callable[[Float64], Float32]) -> tuple[Float32, bytes]:
        """Return x_{k+1}, which ``move`` makes of the mean, and the exact arrays: floats averaged, integers of the
        first upload.
        """
        moved = move(self._accumulator.mean()[ONLY_RUN])
        if not np.isfinite(moved).all():
            raise DivergedError(
                "the mean of the uploads takes the model beyond float32; lower the step size of the clients, "
                "or set max_update_norm against a hostile one"
            )
        exact = self._layout.exact_arrays(self._first)
        for name, total in self._exact.items():
            exact[name] = (total / self.weight).astype(exact[name].dtype)
        return moved, self._layout.exact(exact)
