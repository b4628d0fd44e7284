"""Heterogeneity: how far the clients' losses f_i are from f, and a bound for Theorem 1's schedule without f_i = f.

Both theorems are about equal losses (docs/paper-errata.md, A1). Here every f_i is L-smooth, f is mu-strongly convex,
the gradients of client i have its own mean grad f_i, and at every x

    1/n sum_i ||grad f_i(x) - grad f(x)||^2 <= zeta^2.

One round with step size eta <= 1 / L. Let xbar_t be the mean of all n local iterates after t steps, V_t their mean
squared distance from it, D_t = E||xbar_t - x*||^2 and s^2 = sigma^2 / B. Then

    D_{t+1} <= (1 - eta mu) D_t + eta / mu L^2 V_t + eta^2 s^2 / n
    V_{t+1} <= ((1 + eta L) sqrt(V_t) + eta zeta)^2 + eta^2 s^2,   V_0 = 0,

by ||xbar - eta grad f(xbar) - x*|| <= (1 - eta mu) ||xbar - x*||, Young's inequality, and Minkowski's over the clients.
Sampling and quantizing what the clients moved, u_i with mean ubar, adds

    rho V_tau + q / r (V_tau + E||ubar||^2),   rho = (n - r) / (r (n - 1)),
    E||ubar||^2 <= y eta^2 (tau sum_t 2 L^2 (D_t + V_t) + tau s^2 / n),   y = 2, or 1 for tau = 1,

since the mean of r out of n vectors has variance rho times theirs, and quantizers err independently. Nothing else is
used, so the bound is this recursion, computed round by round. docs/theory.md has the steps in full.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from fedpaq.config import require_int, require_positive
from fedpaq.errors import ConfigError
from fedpaq.theory.assumptions import Variant, require_in_range
from fedpaq.theory.strongly_convex import WithSchedule


@dataclass(frozen=True, kw_only=True)
class HeterogeneousBound(WithSchedule):
    """A bound on E||x_k - x*||^2 under Theorem 1's schedule for clients with different losses.

    ``assumptions.smoothness`` is that of every client's loss, ``heterogeneity`` is zeta^2.

    >>> from fedpaq.theory import Assumptions
    >>> bound = HeterogeneousBound(
    ...     assumptions=Assumptions(smoothness=2.0, strong_convexity=1.0, gradient_variance=0.0),
    ...     heterogeneity=0.25, num_clients=2, clients_per_round=2, local_steps=2)
    >>> bound.first_round, 0 < bound.curve(4, 0.0, 1)[1] < 0.1  # errata A1: the optimum is left
    (4, True)
    """

    heterogeneity: float
    variant: Variant = "heterogeneous"
    _variants: ClassVar[tuple[Variant, ...]] = ("heterogeneous",)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_in_range("heterogeneity", self.heterogeneity, zero_allowed=True)
        if self.assumptions.strong_convexity is None:
            raise ConfigError("strong_convexity=None: this bound needs a strongly convex loss; add regularization")

    @cached_property
    def first_round(self) -> int:
        """The first round of a valid bound, eta <= 1 / L, that shrinks: by a factor of 1 - eta mu tau / 2 or less."""
        low, high = -1, 1
        while not self._shrinks(high):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._shrinks(middle) else (middle, high)
        return high

    def _shrinks(self, round: int) -> bool:
        eta = self.step_size()(round)
        if eta > 1 / self.assumptions.smoothness:
            return False
        factor = self.after_round(1.0, eta, noiseless=True)
        return factor <= 1 - eta * self._mu * self.local_steps / 2

    def curve(self, since: int, initial_error: float, rounds: int) -> list[float]:
        """Return the bound after 0, 1, ..., ``rounds`` rounds from round ``since`` on, from its E||x_k - x*||^2."""
        require_int("since", since, self.first_round)
        require_positive("initial_error", initial_error, zero_allowed=True)
        values, schedule = [initial_error], self.step_size()
        for k in range(since, since + rounds):
            values.append(self.after_round(values[-1], schedule(k)))
        return values

    def after_round(self, error: float, step_size: float, *, noiseless: bool = False) -> float:
        """Return the bound on E||x_{k+1} - x*||^2 from that on E||x_k - x*||^2; ``noiseless``: sigma = zeta = 0."""
        eta, L, mu, tau = step_size, self.assumptions.smoothness, self._mu, self.local_steps
        n, r, q = self.num_clients, self.clients_per_round, self.assumptions.variance_bound
        noise, zeta = (0.0, 0.0) if noiseless else (self._sigma2, math.sqrt(self.heterogeneity))
        mean_error, spread, squares = error, 0.0, 0.0
        for _ in range(tau):
            squares += 2 * L**2 * (mean_error + spread)
            mean_error = (1 - eta * mu) * mean_error + eta / mu * L**2 * spread + eta**2 * noise / n
            spread = ((1 + eta * L) * math.sqrt(spread) + eta * zeta) ** 2 + eta**2 * noise
        moved = (1 if tau == 1 else 2) * eta**2 * (tau * squares + tau * noise / n)
        return mean_error + self._rho * spread + q / r * (spread + moved)
