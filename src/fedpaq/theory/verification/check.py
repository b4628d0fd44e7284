"""Check: measured means next to the bounds, JSON in and out. What is printed, plotted and stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from fedpaq.arrays import AnyArray, Float64, Int64
from fedpaq.config import FedPAQConfig, StepSize, require_int
from fedpaq.theory.round_setting import RoundSetting

MOST_SEEDS = 10**6
Verdict = Literal["holds", "fails", "silent"]


@dataclass(frozen=True, kw_only=True)
class CheckSetting(RoundSetting):
    """How FedPAQ is run for a check."""

    batch_size: int | None = 10
    num_seeds: int = 50

    def __post_init__(self) -> None:
        require_int("num_seeds", self.num_seeds, 2, MOST_SEEDS)

    def config(self, total_steps: int, step_size: StepSize) -> FedPAQConfig:
        """Return a run of so many local steps."""
        return FedPAQConfig(
            clients_per_round=self.clients_per_round,
            local_steps=self.local_steps,
            total_steps=total_steps,
            batch_size=self.batch_size,
            step_size=step_size,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {**super().to_dict(), "batch_size": self.batch_size, "num_seeds": self.num_seeds}


@dataclass(frozen=True, kw_only=True, eq=False)
class BoundCurve:
    """One variant's bound at the points of a check, NaN where the theorem is silent."""

    variant: str
    first_round: int | None
    values: Float64  # (points,)
    worst_ratio: float | None  # largest measured mean / bound, over every round it covers; None: it covers none

    @property
    def verdict(self) -> Verdict:
        """Whether the measured mean lies under the bound throughout, or the theorem is silent."""
        if self.worst_ratio is None:
            return "silent"
        return "holds" if self.worst_ratio <= 1 else "fails"


@dataclass(frozen=True)
class Slope:
    """The exponent fitted in log-log coordinates, with its 95 % interval."""

    value: float
    low: float
    high: float


def fit_slope(steps: AnyArray, curves: Float64, *, resamples: int = 200) -> Slope:
    """Fit the mean of ``curves`` (runs, points) by c * steps^slope; the interval resamples the runs.

    >>> fit_slope(np.array([10, 100, 1000]), np.array([[5.0, 0.5, 0.05]])).value.__round__(6)
    -1.0
    """
    x = np.log(np.asarray(steps, np.float64))
    drawn = np.random.default_rng(0).integers(0, len(curves), (resamples, len(curves)))
    means = np.concatenate([curves.mean(axis=0, keepdims=True), curves[drawn].mean(axis=1)])
    fits = np.polyfit(x, np.log(means).T, 1)[0]  # (1 + resamples,)
    low, high = np.quantile(fits[1:], [0.025, 0.975])
    return Slope(float(fits[0]), float(low), float(high))


@dataclass(frozen=True, kw_only=True, eq=False)
class Check:
    """Measured means, their standard errors and the bounds."""

    theorem: int
    problem: str
    setting: Mapping[str, Any]
    steps: Int64  # (points,) local steps: k tau + 1, or T
    mean: Float64  # (points,)
    standard_error: Float64  # (points,)
    bounds: Sequence[BoundCurve]
    slope: Slope | None  # None where the start of the run still shows, or for a single T

    @property
    def verdict(self) -> Verdict:
        """Whether every bound that says something holds; silent where none does."""
        verdicts = {bound.verdict for bound in self.bounds}
        return "fails" if "fails" in verdicts else "holds" if "holds" in verdicts else "silent"

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
                {**vars(bound), "values": [None if np.isnan(value) else value for value in bound.values.tolist()]}
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
                BoundCurve(**{**bound, "values": np.array(bound["values"], np.float64)}) for bound in values["bounds"]
            ],
        )
