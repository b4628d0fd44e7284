"""Closed form: a plan from the bounds alone, where the constants are known but there is no data.

A setting needs as many rounds as bring its bound down to the target. For a strongly convex loss that
is Theorem 1 with the schedule begun at k0, through f(x) - f* <= L/2 ||x - x*||^2; otherwise Theorem 2, and
the target is a mean squared gradient. The bounds are far above what runs take (docs/theory.md): their
seconds rank settings but do not predict times.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.optimize

from fedpaq import codec
from fedpaq.config import require_int, require_positive
from fedpaq.cost_model import CostModel
from fedpaq.errors import ConfigError
from fedpaq.quantizers import Key
from fedpaq.theory import Assumptions, NonConvexBound, StronglyConvexBound
from fedpaq.theory.round_setting import RoundSetting

MOST_ROUNDS = 10**15
MOST_SCALE, SCALES = 1e15, 12.0  # of the loss: so large that k0 does not depend on it, and the range that is searched
LOOSENESS = (
    "In the checks of docs/theory.md the bounds are up to 100,000 times above the measured error: "
    "use the order of these configurations, not their times. The theorem assumes that all clients have the same loss."
)


@dataclass(frozen=True)
class Guarantee:
    """A setting and the rounds after which its bound is at most the target."""

    setting: RoundSetting
    rounds: int
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {**vars(self), "setting": self.setting.to_dict()}


@dataclass(frozen=True, kw_only=True)
class TheoryInputs:
    """A problem as the theorems see it; ``start`` is ||x_0 - x*||^2, or f(x_0) - f* without mu."""

    assumptions: Assumptions  # q is taken from each setting's quantizer instead
    start: float
    dimension: int
    num_clients: int

    def __post_init__(self) -> None:
        require_positive("start", self.start)
        require_int("dimension", self.dimension, 1)
        require_int("num_clients", self.num_clients, 1)


def plan_from_theory(
    inputs: TheoryInputs,
    settings: Sequence[RoundSetting],
    *,
    target: float,
    cost_model: CostModel,
    batch_size: int = 10,
) -> list[Guarantee]:
    """Return the settings by guaranteed time to the target, fastest first.

    ``target`` is f(x) - f* for a strongly convex loss, a mean squared gradient norm otherwise.
    """
    require_positive("target", target)
    found = []
    for setting in settings:
        bits = setting.clients_per_round * _message_bits(setting, inputs.dimension)
        rounds = rounds_needed(inputs, setting, target, batch_size)
        clients, gradients = setting.clients_per_round, setting.local_steps * batch_size
        each = cost_model.expected_computation_seconds(clients, gradients, inputs.num_clients)
        each += cost_model.communication_seconds(bits, inputs.dimension, clients) + cost_model.round_seconds
        each += cost_model.download_seconds(np.full(clients, codec.raw_bytes(inputs.dimension)))
        found.append(Guarantee(setting, rounds, rounds * each))
    return sorted(found, key=lambda guarantee: guarantee.seconds)


def _message_bits(setting: RoundSetting, dimension: int) -> int:
    """Return QSGD's Elias count, an upper bound, or for other quantizers the payload of a normal update."""
    if setting.levels is not None:
        return codec.message_bits(dimension, setting.levels or None, accounting="elias")
    update = np.random.default_rng(0).standard_normal(dimension, np.float32)
    return 8 * len(codec.encode(setting.quantizer.quantize(update, key=Key(seed=0))))


def rounds_needed(inputs: TheoryInputs, setting: RoundSetting, target: float, batch_size: int) -> int:
    """Return the least number of rounds whose bound, corrected and at its best scale, is at most ``target``."""
    known = inputs.assumptions
    q = setting.quantizer.variance_bound(inputs.dimension)
    given: dict[str, Any] = {
        "assumptions": replace(known, variance_bound=q),
        "num_clients": inputs.num_clients,
        "clients_per_round": setting.clients_per_round,
        "local_steps": setting.local_steps,
        "batch_size": batch_size,
        "variant": "corrected",
    }

    def convex_rounds(scale: float) -> int:
        bound, weight = StronglyConvexBound(**given, loss_scale=scale), known.smoothness / 2
        return _least(lambda rounds: weight * bound.at(bound.first_round + rounds, inputs.start) <= target)

    def stationary_enough(rounds: int) -> bool:
        bound = NonConvexBound(**given, total_steps=rounds * setting.local_steps)
        return bound.holds and bound.at(inputs.start) <= target

    if known.strong_convexity is None:
        return _least(stationary_enough)
    return _least_over_scales(convex_rounds, StronglyConvexBound(**given))


def _least_over_scales(rounds: Callable[[float], int], bound: StronglyConvexBound) -> int:
    """Return the fewest rounds over the scale c of the loss: any c gives a valid bound (docs/paper-errata.md, B6).

    A larger c lowers k0 until its other terms decide, and raises C2: the best is below that point. In between the
    rounds fall and then rise.
    """
    least = replace(bound, loss_scale=MOST_SCALE).first_round / 4
    mu = bound.assumptions.strong_convexity or 1.0
    top = math.log(math.sqrt(4 * bound.num_clients / (least * bound.local_steps)) / mu)
    found = scipy.optimize.minimize_scalar(
        lambda log: rounds(math.exp(log)), bounds=(top - SCALES, top), method="bounded", options={"xatol": 0.01}
    )
    return min(int(found.fun), rounds(math.exp(top)), rounds(1.0))


def _least(enough: Callable[[int], bool]) -> int:
    """Return the least n >= 1 with enough(n), which stays true from there on."""
    low, high = 0, 1
    while not enough(high):
        if high == MOST_ROUNDS:
            raise ConfigError(
                f"the bound stays above the target for {MOST_ROUNDS:.0e} rounds: the theorems promise little where mu "
                "is small; choose a higher target, or plan without the theory"
            )
        low, high = high, min(2 * high, MOST_ROUNDS)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
