"""The paper's cost model (Section 5): how long a round would take on a given network.

    communication = uploaded bits / BW                          (all r uploads share the bandwidth)
    computation   = max over the r participants of  tau B shift + Exp(mean tau B / scale)

The paper gives only the ratio C_comm / C_comp = (p F / BW) / (shift + 1 / scale), F = 32. A model
made by ``from_ratio`` measures time in mean gradient times: shift + 1 / scale = 1, and where the
paper is silent shift = 1 / scale.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpaq.config import require_positive
from fedpaq.errors import ConfigError, unknown_name
from fedpaq.randomness import Purpose, first_uniforms

FLOAT_BITS = 32  # F
ACCOUNTINGS = ("payload", "fixed-width", "elias")


@dataclass(frozen=True, kw_only=True)
class CostModel:
    """Bandwidth in bits a second (or the ratio that fixes it), and shifted-exponential gradients.

    ``shift`` is the least seconds one sample's gradient takes and 1 / ``scale`` the mean of the
    random part on top. ``accounting`` says which bits are charged: the real ``payload``, the
    paper's ``fixed-width`` count, or QSGD's ``elias`` bound.

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
                "bandwidth in bits a second, or the ratio of communication to computation"
            )
        for name in ("bandwidth", "ratio"):
            if getattr(self, name) is not None:
                require_positive(name, getattr(self, name))
        require_positive("shift", self.shift, zero_allowed=True)
        require_positive("scale", self.scale)
        if self.accounting not in ACCOUNTINGS:
            raise unknown_name("accounting", self.accounting, ACCOUNTINGS)
        if not 0 < (self.ratio or 1) * (self.shift + 1 / self.scale) < math.inf:
            raise ConfigError(
                f"ratio={self.ratio}, shift={self.shift}, scale={self.scale} make times that no double holds; "
                "choose milder ones"
            )

    @classmethod
    def from_ratio(cls, ratio: float, *, accounting: str = "payload") -> CostModel:
        """Return the model with C_comm / C_comp = ``ratio`` for whatever dimension it is used on."""
        require_positive("ratio", ratio)
        return cls(ratio=float(ratio), accounting=accounting)

    def bandwidth_for(self, dimension: int) -> float:
        """Return BW in bits a second; a ratio fixes it through p F / BW."""
        if self.bandwidth is not None:
            return self.bandwidth
        assert self.ratio is not None  # exactly one is set, checked at construction
        return dimension * FLOAT_BITS / (self.ratio * (self.shift + 1 / self.scale))

    def communication_seconds(self, upload_bits: float, dimension: int) -> float:
        """Return the seconds all uploads of a round take."""
        return upload_bits / self.bandwidth_for(dimension)

    def computation_seconds(
        self, seed: int, round: int, clients: npt.NDArray[np.int64], gradients: npt.NDArray[np.int64]
    ) -> float:
        """Return the slowest participant's seconds for its ``gradients`` [tau B] sample gradients."""
        seeds = np.full(len(clients), seed, np.uint64)
        numbers = np.ascontiguousarray(clients, np.int64)  # the kernel takes no other kind
        u = first_uniforms(Purpose.COMPUTE_TIME, seeds, round, numbers)
        return float((gradients * (self.shift - np.log(u) / self.scale)).max())

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)
