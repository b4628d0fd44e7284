"""Slope: how fast a measured curve falls, as the exponent of a power law."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Slope:
    """The exponent fitted in log-log coordinates, with its 95 % interval."""

    value: float
    low: float
    high: float


def fit_slope(steps: npt.NDArray[Any], curves: Float64, *, resamples: int = 200) -> Slope:
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
