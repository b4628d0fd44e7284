"""The paper's cost model (Section 5): how long a round would take on a given network.

    communication = uploaded bits / BW                          (all r uploads share the bandwidth)
    computation   = max over the r participants of  tau B shift + Exp(mean tau B / scale)

The paper gives only the ratio C_comm / C_comp = (p F / BW) / (shift + 1 / scale), F = 32. A model
made by ``from_ratio`` measures time in mean gradient times: shift + 1 / scale = 1. The paper does not
say how the mean is split; we take shift = 1 / scale. Nor does it give a formula for the bits of a
message: p (1 + ceil(log2(s + 1))) + 32, called ``fixed-width`` here, is our reading of it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpaq.config import require_positive
from fedpaq.errors import ConfigError, unknown_name
from fedpaq.randomness import Purpose, first_uniforms

FLOAT_BITS = 32  # F
ACCOUNTINGS = ("payload", "fixed-width", "elias")
TIME_RANGE = (1e-100, 1e100)  # seconds of a gradient, of a bit and of an upload: all their sums stay finite


@dataclass(frozen=True, kw_only=True)
class CostModel:
    """Bandwidth in bits per second (or the ratio that fixes it), and shifted-exponential gradients.

    ``shift`` is the shortest time of one sample's gradient in seconds, and 1 / ``scale`` the mean of the
    random part on top. ``accounting`` says which bits are charged: the real ``payload``, the
    ``fixed-width`` count that we read into the paper, or QSGD's ``elias`` bound.

    >>> CostModel.from_ratio(100).bandwidth_for(785)
    251.2
    """

    bandwidth: float | None = None
    ratio: float | None = None
    shift: float = 0.5
    scale: float = 2.0
    accounting: str = "payload"

    def __post_init__(self) -> None:
        if (self.bandwidth is None) == (self.ratio is None):
            raise ConfigError(
                f"bandwidth={self.bandwidth} and ratio={self.ratio}: give exactly one; "
                "bandwidth in bits per second, or the ratio of communication to computation"
            )
        for name in ("bandwidth", "ratio"):
            if getattr(self, name) is not None:
                require_positive(name, getattr(self, name))
        require_positive("shift", self.shift, zero_allowed=True)
        require_positive("scale", self.scale)
        if self.accounting not in ACCOUNTINGS:
            raise unknown_name("accounting", self.accounting, ACCOUNTINGS)
        gradient = self.shift + 1 / self.scale
        if self.bandwidth is not None:
            network, sent, seconds = f"bandwidth={self.bandwidth}", "a bit", 1 / self.bandwidth
        else:
            network, sent, seconds = f"ratio={self.ratio}", "a float32 upload", (self.ratio or 0.0) * gradient
        low, high = TIME_RANGE
        if not (low <= gradient <= high and low <= seconds <= high):
            raise ConfigError(
                f"{network}, shift={self.shift}, scale={self.scale}: a gradient takes {gradient:g} s and "
                f"{sent} {seconds:g} s; choose values that keep both within {low:g}..{high:g} s"
            )

    @classmethod
    def from_ratio(cls, ratio: float, *, accounting: str = "payload") -> CostModel:
        """Return the model with C_comm / C_comp = ``ratio`` for whatever dimension it is used on."""
        require_positive("ratio", ratio)
        return cls(ratio=float(ratio), accounting=accounting)

    def bandwidth_for(self, dimension: int) -> float:
        """Return BW in bits per second; a ratio fixes it through p F / BW."""
        if self.bandwidth is not None:
            return self.bandwidth
        assert self.ratio is not None  # exactly one is set, checked at construction
        return dimension * FLOAT_BITS / (self.ratio * (self.shift + 1 / self.scale))

    def communication_seconds(self, upload_bits: float, dimension: int) -> float:
        """Return the seconds that ``upload_bits``, all uploads of a round together, take."""
        return upload_bits / self.bandwidth_for(dimension)

    def computation_seconds(
        self, seed: int, round: int, clients: npt.NDArray[np.int64], gradients: npt.NDArray[np.int64]
    ) -> float:
        """Return the slowest participant's seconds for its ``gradients`` [tau B] sample gradients."""
        seeds = np.full(len(clients), seed, np.uint64)
        numbers = np.ascontiguousarray(clients, np.int64)  # the kernel takes no other kind
        u = first_uniforms(Purpose.COMPUTE_TIME, seeds, round, numbers)
        return float((gradients * (self.shift - np.log(u) / self.scale)).max())

    def expected_computation_seconds(self, clients_per_round: int, gradients: float) -> float:
        """Return the mean of ``computation_seconds`` for r clients with equal ``gradients`` [tau B].

        The slowest of r shifted exponentials takes shift + H_r / scale on average, with
        H_r = 1 + 1/2 + ... + 1/r. It does not depend on what the clients learn, so two settings can be
        compared by their means, and neither gains from clients that happened to be fast.

        >>> CostModel(ratio=1.0, shift=0.5, scale=2.0).expected_computation_seconds(2, gradients=30)
        37.5
        """
        harmonic = sum(1 / i for i in range(1, clients_per_round + 1))
        return gradients * (self.shift + harmonic / self.scale)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)
