"""Theorem 2: a smooth loss, convex or not, and the constant step size 1 / (L sqrt(T)).

    1/T sum_k sum_t E||grad f(xbar_{k,t})||^2 <= 2 L (f(x_0) - f*) / sqrt(T) + N1 / sqrt(T) + N2 (tau - 1) / T

where xbar_{k,t} is the mean of all n clients' iterates, participants or not. With
rho = (n - r) / (r (n - 1)):

                 N1 n / sigma^2                  N2                    tau at most
    as_stated    (1 + q) (1 + n rho)             sigma^2 (n + 1) / n   (sqrt(B2^2 + 0.8) - B2) / 8 sqrt(T)
    as_derived   (1 + q) (1 + 4 n rho)           sigma^2 (n + 1) / n   (sqrt(B2^2 + 0.8) - B2) / 4 sqrt(T)
    corrected    1 + y q + y (1 + q) n rho       sigma^2               the root of the condition below

    B2 = q / n + 4 (1 + q) rho  as stated and as derived,   y (q / n + (1 + q) rho)  corrected,

y = 1 for tau = 1 and 2 otherwise: past the first local step the noise is no longer orthogonal to
the gradients it moved, so E||noise + gradients||^2 takes a factor 2 that the paper leaves out
(docs/paper-errata.md, part C). The condition behind ``tau at most``, with u = 1 / sqrt(T):

    u + B2 tau u + c tau (tau - 1) u^2 <= 1,   c = 2 in the paper, 1 corrected.
"""

import math
from dataclasses import dataclass
from functools import cached_property

from fedpaq.config import MAX_STEPS, require_int, require_positive
from fedpaq.theory.assumptions import Condition, Theorem


@dataclass(frozen=True, kw_only=True)
class NonConvexStepSize:
    """Theorem 2's step size, 1 / (L sqrt(T)) in every round.

    >>> NonConvexStepSize(smoothness=2.0, total_steps=100)(7)
    0.05
    """

    smoothness: float
    total_steps: int

    def __post_init__(self) -> None:
        require_positive("smoothness", self.smoothness)
        require_int("total_steps", self.total_steps, 1, MAX_STEPS)

    def __call__(self, round: int) -> float:
        """Return eta, the same in every round."""
        return 1.0 / (self.smoothness * math.sqrt(self.total_steps))


@dataclass(frozen=True, kw_only=True)
class NonConvexBound(Theorem):
    """Theorem 2 for one setting.

    >>> from fedpaq.theory.assumptions import Assumptions
    >>> bound = NonConvexBound(
    ...     assumptions=Assumptions(smoothness=2.0, gradient_variance=4.0),
    ...     num_clients=4, clients_per_round=4, local_steps=2, total_steps=400)
    >>> bound.n1, bound.n2, bound.holds, round(bound.at(initial_gap=3.0), 4)
    (1.0, 5.0, True, 0.6625)
    """

    total_steps: int

    def __post_init__(self) -> None:
        super().__post_init__()
        require_int("total_steps", self.total_steps, 1, MAX_STEPS)

    @cached_property
    def b2(self) -> float:
        """B2: what quantization and sampling cost the descent."""
        return self._b2_for(self.local_steps)

    @cached_property
    def n1(self) -> float:
        """N1: noise of gradients, quantizer and sampling."""
        q, n, rho = self.assumptions.variance_bound, self.num_clients, self._rho
        if self.variant == "as_stated":
            share = (1 + q) * (1 + n * rho)
        elif self.variant == "as_derived":
            share = (1 + q) * (1 + 4 * n * rho)
        else:
            y = _noise_factor(self.local_steps)
            share = 1 + y * q + y * (1 + q) * n * rho
        return self._sigma2 / n * share

    @cached_property
    def n2(self) -> float:
        """N2: drift of the clients apart during a round."""
        n = self.num_clients
        return self._sigma2 if self.variant == "corrected" else self._sigma2 * (n + 1) / n

    @cached_property
    def step_size(self) -> NonConvexStepSize:
        """The step size of the theorem."""
        return NonConvexStepSize(smoothness=self.assumptions.smoothness, total_steps=self.total_steps)

    @cached_property
    def largest_local_steps(self) -> int:
        """The largest admissible tau for this T, 0 if there is none."""
        if self.total_steps < 2:
            return 0
        if self.variant != "corrected":
            divisor = 8 if self.variant == "as_stated" else 4
            root = (math.sqrt(self.b2**2 + 0.8) - self.b2) / divisor
            return math.floor(root * math.sqrt(self.total_steps) * (1 + 1e-12))
        # u + B2 tau u + tau (tau - 1) u^2 = 1, solved for tau with the B2 of tau >= 2.
        u, b2 = 1 / math.sqrt(self.total_steps), self._b2_for(2)
        linear = b2 - u
        tau = (math.sqrt(linear**2 + 4 * (1 - u)) - linear) / (2 * u)
        largest = math.floor(tau * (1 + 1e-12))
        return largest if largest >= 2 else int(self._left_side(1) <= 1)

    @property
    def holds(self) -> bool:
        """Whether T and tau meet every condition of the theorem."""
        return all(condition.holds for condition in self.conditions())

    def conditions(self) -> tuple[Condition, ...]:
        """Return what the theorem requires of T and tau."""
        return (
            Condition(text="2 <= T", left=2, right=self.total_steps),
            Condition(text="tau <= largest admissible", left=self.local_steps, right=self.largest_local_steps),
        )

    def terms(self, initial_gap: float) -> tuple[float, float, float]:
        """Return the three summands of the bound; ``initial_gap`` is f(x_0) - f*."""
        require_positive("initial_gap", initial_gap, zero_allowed=True)
        root = math.sqrt(self.total_steps)
        return (
            2 * self.assumptions.smoothness * initial_gap / root,
            self.n1 / root,
            self.n2 * (self.local_steps - 1) / self.total_steps,
        )

    def at(self, initial_gap: float) -> float:
        """Return the bound on the averaged squared gradient norm; it holds where ``holds`` is true."""
        return sum(self.terms(initial_gap))

    def _b2_for(self, local_steps: int) -> float:
        q, n = self.assumptions.variance_bound, self.num_clients
        if self.variant == "corrected":
            return _noise_factor(local_steps) * (q / n + (1 + q) * self._rho)
        return q / n + 4 * (1 + q) * self._rho

    def _left_side(self, local_steps: int) -> float:
        u = 1 / math.sqrt(self.total_steps)
        return u + self._b2_for(local_steps) * local_steps * u + local_steps * (local_steps - 1) * u**2


def _noise_factor(local_steps: int) -> float:
    """Return y: what E||noise + gradients||^2 <= y (E||noise||^2 + E||gradients||^2) needs."""
    return 1.0 if local_steps == 1 else 2.0
