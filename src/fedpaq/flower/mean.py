"""RoundMean: Algorithm 1, line 11, over the uploads that arrived.

Uploads are added in client order into a float64 total, divided by their number, added to x_k and
rounded to float32: exactly as the simulator does, so both agree to the bit. That takes O(p)
memory and touches only non-zeros. A robust ``aggregation`` keeps the round's messages instead.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedpaq import codec
from fedpaq.errors import DivergedError
from fedpaq.flower.layout import Float32, Layout
from fedpaq.flower.replies import Upload
from fedpaq.server.aggregation import Aggregation

Float64 = npt.NDArray[np.float64]
ONLY_RUN = np.zeros(1, np.int64)


class RoundMean:
    """Takes uploads in; ``count`` of them so far."""

    def __init__(self, layout: Layout, aggregation: Aggregation | None = None) -> None:
        self._layout, self.count = layout, 0
        # The plain mean goes straight from payloads to the total; others need the messages.
        self._total = np.zeros(layout.dimension if aggregation is None else 0)  # (p,)
        self._arrivals = None if aggregation is None else aggregation.start(1, layout.dimension)
        self._exact: dict[str, Float64] = {}
        self._first = b""

    def add(self, upload: Upload) -> None:
        """Take one upload in; on WireFormatError everything is as it was."""
        if self._arrivals is None:
            codec.accumulate(upload.payload, self._total)
        else:
            message = codec.decode(upload.payload, dimension=self._layout.dimension)
            self._arrivals.add([message], ONLY_RUN)
        for name, values in self._layout.exact_arrays(upload.exact).items():
            if values.dtype.kind == "f":
                self._exact[name] = self._exact.get(name, 0.0) + values.astype(np.float64)
        if self.count == 0:
            self._first = upload.exact
        self.count += 1

    def apply(self, params: Float32) -> tuple[Float32, bytes]:
        """Return x_{k+1} and the exact arrays: floats averaged, integers of the first upload."""
        mean = self._total / self.count if self._arrivals is None else self._arrivals.mean()[0]
        with np.errstate(over="ignore", invalid="ignore"):
            moved = (params + mean).astype(np.float32)
        if not np.isfinite(moved).all():
            raise DivergedError(
                "the mean of the uploads takes the model beyond float32; lower the step size of the clients, "
                "or set max_update_norm against a hostile one"
            )
        exact = self._layout.exact_arrays(self._first)
        for name, total in self._exact.items():
            exact[name] = (total / self.count).astype(exact[name].dtype)
        return moved, self._layout.exact(exact)
