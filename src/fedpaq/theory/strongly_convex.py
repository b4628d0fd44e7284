"""Theorem 1: a strongly convex loss and step sizes 4 / (mu (k tau + 1)).

For every round k >= k0

    E||x_k - x*||^2 <= (k0 tau + 1)^2 / (k tau + 1)^2 E||x_k0 - x*||^2
                       + C1 tau / (k tau + 1) + C2 (tau - 1)^2 / (k tau + 1) + C3 (tau - 1) / (k tau + 1)^2.

With rho = (n - r) / (r (n - 1)), and (a, d) = (4, e) as stated and as derived, (1, 1/2) corrected:

    B1 = 2 L^2 (q / n + a (1 + q) rho)
    C1 = 16 sigma^2 / (mu^2 n) (1 + 2q + 2a (1 + q) n rho)
    C2 = 16 d L^2 sigma^2 / (mu^2 n)
    C3 = 256 d L^2 sigma^2 / (mu^4 n) (n + 2q + 2a (1 + q) n rho)
    k0 = ceil(4 max{L / mu, 4 (B1 / mu^2 + 1), 1 / tau, 4n / (mu^2 tau)})

``as_derived`` adds L^2 / (mu^2 tau) to the maximum, which the proof of Lemma 2 needs. ``corrected``
does not: with a sharper Lemma 2 and an exact Lemma 4 every constant falls, so that the theorem as
stated is true although its proof has gaps (docs/paper-errata.md, part B).

Written for c f instead of f, with steps divided by c, the theorem is about the same iterates, but 4n
becomes 4n / c^2 and C2 becomes c^2 C2: any ``loss_scale`` c gives a valid bound.
"""

import math
from dataclasses import dataclass
from functools import cached_property

from fedpaq.config import MAX_STEPS, require_int, require_positive
from fedpaq.errors import ConfigError
from fedpaq.theory.assumptions import Condition, Theorem, require_in_range


@dataclass(frozen=True, kw_only=True)
class StronglyConvexStepSize:
    """Theorem 1's schedule, 4 / (mu ((k + start) tau + 1)) in round k = 0, 1, ...

    The paper's has ``start`` = 0 and begins at 4 / mu, at least twice the 2 / L up to which plain gradient
    descent is stable; the theorem says nothing about the rounds before k0. With ``start`` = k0 the
    guarantee holds from the first round on, with x_0 in place of x_k0.

    >>> StronglyConvexStepSize(strong_convexity=1.0, local_steps=5)(3)
    0.25
    """

    strong_convexity: float
    local_steps: int
    start: int = 0

    def __post_init__(self) -> None:
        require_positive("strong_convexity", self.strong_convexity)
        require_int("local_steps", self.local_steps, 1, MAX_STEPS)
        require_int("start", self.start, 0)

    def __call__(self, round: int) -> float:
        """Return eta of the given round."""
        return 4.0 / (self.strong_convexity * ((round + self.start) * self.local_steps + 1))


class WithSchedule(Theorem):
    """What is about the schedule of Theorem 1; its assumptions have a mu, which ``__post_init__`` sees to."""

    def step_size(self, start: int = 0) -> StronglyConvexStepSize:
        """Return the schedule of Theorem 1; ``start=bound.first_round`` skips the rounds without a bound."""
        return StronglyConvexStepSize(strong_convexity=self._mu, local_steps=self.local_steps, start=start)

    @property
    def _mu(self) -> float:
        assert self.assumptions.strong_convexity is not None  # refused by __post_init__
        return self.assumptions.strong_convexity


@dataclass(frozen=True, kw_only=True)
class StronglyConvexBound(WithSchedule):
    """Theorem 1 for one setting.

    >>> from fedpaq.theory.assumptions import Assumptions
    >>> bound = StronglyConvexBound(
    ...     assumptions=Assumptions(smoothness=2.0, strong_convexity=1.0, gradient_variance=4.0),
    ...     num_clients=4, clients_per_round=4, local_steps=1)
    >>> bound.first_round, bound.c1, round(bound.at(640, initial_error=1.0), 4)
    (64, 16.0, 0.0352)
    """

    loss_scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_in_range("loss_scale", self.loss_scale)
        if self.assumptions.strong_convexity is None:
            raise ConfigError(
                "strong_convexity=None: Theorem 1 needs a strongly convex loss; add regularization, "
                "or use NonConvexBound"
            )

    @cached_property
    def b1(self) -> float:
        """B1: how much quantization and sampling slow the contraction."""
        L, q, n = self.assumptions.smoothness, self.assumptions.variance_bound, self.num_clients
        return 2 * L**2 * (q / n + self._sampling_factor * (1 + q) * self._rho)

    @cached_property
    def c1(self) -> float:
        """C1: noise of gradients, quantizer and sampling."""
        q = self.assumptions.variance_bound
        return 16 * self._sigma2 / (self._mu**2 * self.num_clients) * (1 + 2 * q + self._sampling)

    @cached_property
    def c2(self) -> float:
        """C2: drift of the clients apart during a round."""
        L = self.assumptions.smoothness
        scale = 16 * self._drift_factor * self.loss_scale**2
        return scale * L**2 * self._sigma2 / (self._mu**2 * self.num_clients)

    @cached_property
    def c3(self) -> float:
        """C3: drift times noise; falls as 1 / T^2."""
        L, q, n = self.assumptions.smoothness, self.assumptions.variance_bound, self.num_clients
        scale = 256 * self._drift_factor * L**2 * self._sigma2 / (self._mu**4 * n)
        return scale * (n + 2 * q + self._sampling)

    @cached_property
    def first_round(self) -> int:
        """k0: the first round from which the bound holds."""
        L, mu, n, tau = self.assumptions.smoothness, self._mu, self.num_clients, self.local_steps
        terms = [L / mu, 4 * (self.b1 / mu**2 + 1), 1 / tau, 4 * n / (self.loss_scale**2 * mu**2 * tau)]
        if self.variant == "as_derived":
            terms.append(L**2 / (mu**2 * tau))
        return math.ceil(4 * max(terms))

    def terms_at(
        self, round: int, initial_error: float, *, since: int | None = None
    ) -> tuple[float, float, float, float]:
        """Return the four summands of the bound on E||x_k - x*||^2 for k = ``round`` >= k0.

        ``initial_error`` is E||x_k - x*||^2 at round ``since`` (default: k0, or any later round). Rounds
        count from the schedule's own zero: after j rounds of a schedule with ``start``, k = start + j.
        """
        since = self.first_round if since is None else since
        require_int("since", since, self.first_round)
        require_int("round", round, since)
        require_positive("initial_error", initial_error, zero_allowed=True)
        tau = self.local_steps
        steps = round * tau + 1
        return (
            ((since * tau + 1) / steps) ** 2 * initial_error,
            self.c1 * tau / steps,
            self.c2 * (tau - 1) ** 2 / steps,
            self.c3 * (tau - 1) / steps**2,
        )

    def curve(self, since: int, initial_error: float, rounds: int) -> list[float]:
        """Return the bound after 0, 1, ..., ``rounds`` rounds from round ``since`` on, from its E||x_k - x*||^2."""
        return [self.at(k, initial_error, since=since) for k in range(since, since + rounds + 1)]

    def at(self, round: int, initial_error: float, *, since: int | None = None) -> float:
        """Return the bound on E||x_k - x*||^2 for k = ``round`` >= k0; see ``terms_at``."""
        return sum(self.terms_at(round, initial_error, since=since))

    def conditions(self, round: int | None = None) -> tuple[Condition, ...]:
        """Return what the proof requires of eta_k in the given round (default: k0)."""
        k = self.first_round if round is None else round
        L, mu, tau, n = self.assumptions.smoothness, self._mu, self.local_steps, self.num_clients
        eta = self.step_size()(k)
        needed = [
            Condition(text="eta tau <= 1 / L", left=eta * tau, right=1 / L),
            Condition(text="eta tau <= mu / (4 (mu^2 + B1))", left=eta * tau, right=mu / (4 * (mu**2 + self.b1))),
            Condition(text="eta <= c^2 mu / (4 n)", left=eta, right=self.loss_scale**2 * mu / (4 * n)),
        ]
        if self.variant != "corrected":  # the sharper Lemma 2 needs eta <= 1 / L only
            needed.append(Condition(text="eta <= mu / L^2", left=eta, right=mu / L**2))
        return tuple(needed)

    @property
    def _sampling_factor(self) -> float:
        return 1.0 if self.variant == "corrected" else 4.0

    @property
    def _drift_factor(self) -> float:
        return 0.5 if self.variant == "corrected" else math.e

    @property
    def _sampling(self) -> float:
        q = self.assumptions.variance_bound
        return 2 * self._sampling_factor * (1 + q) * self.num_clients * self._rho
