"""Loss axis: ends and ticks of a panel's logarithmic axis of relative training loss."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedpaq.experiments.curve import Curve


def loss_range(curves: Sequence[Curve]) -> tuple[float, float]:
    """Return the ends of a panel's loss axis: all bands from round 1 on, and a little air."""
    low = min(float(curve.relative_loss[:, 1:].min()) for curve in curves)
    high = max(float(curve.relative_loss[:, 1:].max()) for curve in curves)
    air = (high / low) ** 0.05
    return float(f"{low / air:.4g}"), float(f"{high * air:.4g}")


def ticks(low: float, high: float) -> list[float]:
    """Return round numbers between the ends of a logarithmic axis, at most about eight.

    >>> ticks(0.04, 3)
    [0.05, 0.1, 0.2, 0.5, 1.0, 2.0]
    >>> ticks(0.71, 1.02)
    [0.75, 0.8, 0.85, 0.9, 0.95, 1.0]
    >>> ticks(0.0021, 0.0094)
    [0.003, 0.004, 0.005, 0.006, 0.007, 0.008, 0.009]
    """
    if high / low > 6:
        powers = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
        values = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    else:
        power = int(np.floor(np.log10((high - low) / 8)))
        steps = [digit * 10.0**exponent for exponent in (power, power + 1) for digit in (1, 2, 5)]
        step = min(step for step in steps if (high - low) / step <= 8)
        values = [step * number for number in range(int(low / step), int(high / step) + 1)]
    return [float(f"{value:.6g}") for value in values if low <= value <= high]
