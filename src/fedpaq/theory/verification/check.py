"""Check: measured means next to the bounds, JSON in and out. What is printed, plotted and stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpaq.config import require_int
from fedpaq.quantizers import Identity, Quantizer
from fedpaq.theory.verification.slope import Slope

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How FedPAQ is run for a check."""

    clients_per_round: int
    local_steps: int
    batch_size: int | None = 10
    quantizer: Quantizer = field(default_factory=Identity)
    num_seeds: int = 50

    def __post_init__(self) -> None:
        require_int("num_seeds", self.num_seeds, 2)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {**asdict(replace(self, quantizer=Identity())), "quantizer": self.quantizer.name}


@dataclass(frozen=True, kw_only=True, eq=False)
class BoundCurve:
    """One variant's bound at the points of a check, NaN where the theorem does not speak."""

    variant: str
    first_round: int | None
    values: Float64  # (points,)
    worst_ratio: float  # largest measured mean / bound, over every round it speaks of

    @property
    def holds(self) -> bool:
        """Whether the measured mean lies under the bound throughout."""
        return self.worst_ratio <= 1


@dataclass(frozen=True, kw_only=True, eq=False)
class Check:
    """Measured means, their standard errors and the bounds: what is printed, plotted and stored."""

    theorem: int
    problem: str
    setting: Mapping[str, Any]
    steps: npt.NDArray[np.int64]  # (points,) local steps: k tau + 1, or T
    mean: Float64  # (points,)
    standard_error: Float64  # (points,)
    bounds: Sequence[BoundCurve]
    slope: Slope | None  # None where the start of the run still shows, or for a single T

    @property
    def holds(self) -> bool:
        """Whether every variant's bound holds."""
        return all(bound.holds for bound in self.bounds)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "theorem": self.theorem,
            "problem": self.problem,
            "setting": dict(self.setting),
            "steps": self.steps.tolist(),
            "mean": self.mean.tolist(),
            "standard_error": self.standard_error.tolist(),
            "slope": None if self.slope is None else asdict(self.slope),
            "bounds": [
                {
                    "variant": bound.variant,
                    "first_round": bound.first_round,
                    "worst_ratio": bound.worst_ratio,
                    "values": [None if np.isnan(value) else value for value in bound.values.tolist()],
                }
                for bound in self.bounds
            ],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Check:
        """Return the check that ``to_dict`` described."""
        slope = values["slope"]
        return cls(
            theorem=values["theorem"],
            problem=values["problem"],
            setting=values["setting"],
            steps=np.array(values["steps"], np.int64),
            mean=np.array(values["mean"]),
            standard_error=np.array(values["standard_error"]),
            slope=None if slope is None else Slope(**slope),
            bounds=[
                BoundCurve(**{**bound, "values": np.array(bound["values"], np.float64)})
                for bound in values["bounds"]
            ],
        )
