"""Assumptions 1 to 4 of the paper: the constants both theorems are made of.

    Assumption 1   E||Q(x) - x||^2 <= q ||x||^2                 ``variance_bound``
    Assumption 2   ||grad f(x) - grad f(y)|| <= L ||x - y||     ``smoothness``
    Assumption 3   E||g(x) - grad f(x)||^2 <= sigma^2           ``gradient_variance``
    Assumption 4   f is mu-strongly convex                      ``strong_convexity``

Both proofs also use that every client's loss is the same function, f_i = f: "i.i.d." in the
paper's words (docs/paper-errata.md, A1). With few samples per client that is only roughly true.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, get_args

from fedpaq.config import MAX_STEPS, require_int, require_positive
from fedpaq.errors import ConfigError, unknown_name

Variant = Literal["as_stated", "as_derived", "corrected", "heterogeneous"]
"""Whose constants: the theorem's text, its proof's own algebra, or the proof with each step made valid; the last is a
bound of our own for clients whose losses differ."""
VARIANTS: tuple[Variant, ...] = get_args(Variant)[:3]  # of the two theorems
RANGE = (1e-20, 1e20)  # of every constant: the bounds multiply up to ten of them


@dataclass(frozen=True, kw_only=True)
class Assumptions:
    """What is assumed of the loss, of one sample's gradient and of the quantizer."""

    smoothness: float  # L
    gradient_variance: float  # sigma^2 of a single-sample gradient
    variance_bound: float = 0.0  # q
    strong_convexity: float | None = None  # mu; None where the loss is not strongly convex

    def __post_init__(self) -> None:
        require_in_range("smoothness", self.smoothness)
        require_in_range("gradient_variance", self.gradient_variance, zero_allowed=True)
        require_in_range("variance_bound", self.variance_bound, zero_allowed=True)
        if self.strong_convexity is None:
            return
        require_in_range("strong_convexity", self.strong_convexity)
        if self.strong_convexity > self.smoothness * (1 + 1e-12):
            raise ConfigError(
                f"strong_convexity={self.strong_convexity} exceeds smoothness={self.smoothness}; "
                f"no loss curves more than its smoothness, so choose at most {self.smoothness}"
            )

    def with_batch(self, batch_size: int | None) -> Assumptions:
        """Return these for gradients averaged over a batch: sigma^2 / B.

        This assumes what ``train`` does: B independent draws, with replacement, from samples whose mean
        gradient is grad f. It then holds for any number of samples, B above m included. A client that draws
        from m samples of its own has grad f_i as its mean instead, and its distance from grad f does not
        shrink with B (docs/paper-errata.md, A1). None is a full pass over the client's samples: no noise.
        """
        if batch_size is None:
            return replace(self, gradient_variance=0.0)
        require_int("batch_size", batch_size, 1, MAX_STEPS)
        return replace(self, gradient_variance=self.gradient_variance / batch_size)


@dataclass(frozen=True, kw_only=True)
class Theorem:
    """What both theorems are given; ``variant`` says whose constants."""

    assumptions: Assumptions
    num_clients: int
    clients_per_round: int
    local_steps: int
    batch_size: int | None = 1
    variant: Variant = "as_stated"
    _variants: ClassVar[tuple[Variant, ...]] = VARIANTS

    def __post_init__(self) -> None:
        if self.variant not in self._variants:
            raise unknown_name("variant", self.variant, self._variants)
        require_int("num_clients", self.num_clients, 1)
        require_int("clients_per_round", self.clients_per_round, 1, self.num_clients)
        require_int("local_steps", self.local_steps, 1, MAX_STEPS)
        self.assumptions.with_batch(self.batch_size)

    @property
    def _sigma2(self) -> float:
        return self.assumptions.with_batch(self.batch_size).gradient_variance

    @property
    def _rho(self) -> float:
        return sampling_variance(self.num_clients, self.clients_per_round)


@dataclass(frozen=True, kw_only=True)
class Condition:
    """One requirement of a theorem, with both sides as numbers."""

    text: str
    left: float
    right: float

    @property
    def holds(self) -> bool:
        """left <= right."""
        return self.left <= self.right


def require_in_range(name: str, value: float, *, zero_allowed: bool = False) -> None:
    """Raise ConfigError unless a constant is positive (or 0) and small enough for its powers."""
    require_positive(name, value, zero_allowed=zero_allowed)
    low, high = 0.0 if zero_allowed else RANGE[0], RANGE[1]
    if not low <= value <= high:
        raise ConfigError(f"{name}={value:g} is out of range; choose {low:g}..{high:g}")


def sampling_variance(num_clients: int, clients_per_round: int) -> float:
    """Return (n - r) / (r (n - 1)), the variance of a mean of r out of n drawn without replacement.

    It is 0 when all take part; the quotient alone is 0 / 0 for a single client.

    >>> sampling_variance(50, 25) == 25 / (25 * 49)
    True
    """
    n, r = num_clients, clients_per_round
    return 0.0 if r == n else (n - r) / (r * (n - 1))
