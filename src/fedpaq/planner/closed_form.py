"""Closed form: a plan from the bounds alone, for who has constants but no data.

A setting needs as many rounds as make its bound at most the target. For a strongly convex loss that
is Theorem 1 with the schedule begun at k0, through f(x) - f* <= L/2 ||x - x*||^2; otherwise Theorem 2, and
the target is a mean squared gradient. Bits are QSGD's Elias count, an upper bound. The bounds are
far above what runs take (docs/theory.md): by their seconds settings can be compared, not planned with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedpaq import codec
from fedpaq.config import require_int, require_positive
from fedpaq.cost_model import CostModel
from fedpaq.errors import ConfigError
from fedpaq.planner.expected_time import expected_computation
from fedpaq.planner.search_space import RoundSetting
from fedpaq.theory import Assumptions, NonConvexBound, StronglyConvexBound

MOST_ROUNDS = 10**15
LOOSENESS = (
    "The bounds overstate the error 2 to 100,000 times in the checks of docs/theory.md: "
    "use this order of configurations, not these times."
)


@dataclass(frozen=True)
class Guarantee:
    """A setting and the rounds after which its bound is at most the target."""

    setting: RoundSetting
    rounds: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class TheoryInputs:
    """What is known of a problem without its data; ``start`` is ||x_0 - x*||^2, or f(x_0) - f* without mu."""

    assumptions: Assumptions  # its quantizer constant is ignored
    start: float
    dimension: int
    num_clients: int

    def __post_init__(self) -> None:
        require_positive("start", self.start)
        require_int("dimension", self.dimension, 1)
        require_int("num_clients", self.num_clients, 1)


def plan_from_theory(
    knowledge: TheoryInputs,
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
        levels = setting.levels or None
        bits = setting.clients_per_round * codec.message_bits(knowledge.dimension, levels, accounting="elias")
        rounds = rounds_needed(knowledge, setting, target, batch_size)
        each = expected_computation(cost_model, setting, batch_size)
        each += cost_model.communication_seconds(bits, knowledge.dimension)
        found.append(Guarantee(setting, rounds, rounds * each))
    return sorted(found, key=lambda guarantee: guarantee.seconds)


def rounds_needed(knowledge: TheoryInputs, setting: RoundSetting, target: float, batch_size: int) -> int:
    """Return the least number of rounds whose bound, corrected, is at most ``target``."""
    known = knowledge.assumptions
    assumptions = Assumptions(
        smoothness=known.smoothness,
        gradient_variance=known.gradient_variance,
        strong_convexity=known.strong_convexity,
        variance_bound=setting.quantizer.variance_bound(knowledge.dimension),
    )

    def convex_enough(rounds: int) -> bool:
        bound = StronglyConvexBound(
            assumptions=assumptions,
            num_clients=knowledge.num_clients,
            clients_per_round=setting.clients_per_round,
            local_steps=setting.local_steps,
            batch_size=batch_size,
            variant="corrected",
        )
        return known.smoothness / 2 * bound.at(bound.first_round + rounds, knowledge.start) <= target

    def stationary_enough(rounds: int) -> bool:
        bound = NonConvexBound(
            assumptions=assumptions,
            num_clients=knowledge.num_clients,
            clients_per_round=setting.clients_per_round,
            local_steps=setting.local_steps,
            total_steps=rounds * setting.local_steps,
            batch_size=batch_size,
            variant="corrected",
        )
        return bound.holds and bound.at(knowledge.start) <= target

    return _least(convex_enough if known.strong_convexity is not None else stationary_enough)


def _least(enough: Callable[[int], bool]) -> int:
    """Return the least n >= 1 with enough(n), which stays true from there on."""
    low, high = 0, 1
    while not enough(high):
        if high == MOST_ROUNDS:
            raise ConfigError(f"no bound gets to the target within {MOST_ROUNDS} rounds; aim higher")
        low, high = high, min(2 * high, MOST_ROUNDS)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
