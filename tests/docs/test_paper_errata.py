"""Every finding of docs/paper-errata.md that a computation can show, by its number there."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction as F

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedpaq.theory import Assumptions, NonConvexBound, StronglyConvexBound


def test_a1_theorem_1_needs_equal_client_losses():
    """Two clients, f_1 = (x - 1)^2 / 2 and f_2 = (x + 1/2)^2, exact gradients: x* = 0 is not kept.

    Assumptions 1 to 4 hold with L = 2, mu = 1, sigma = 0, q = 0, so the theorem's bound for
    x_k0 = x* is 0 at every later round. One round of two local steps leaves the optimum.
    """
    bound = StronglyConvexBound(
        assumptions=Assumptions(smoothness=2.0, strong_convexity=1.0, gradient_variance=0.0),
        num_clients=2,
        clients_per_round=2,
        local_steps=2,
    )
    k0 = bound.first_round
    assert bound.at(k0 + 1, initial_error=0.0) == 0.0

    eta, ends = F(4, 2 * k0 + 1), []
    for gradient in (lambda x: x - 1, lambda x: 2 * (x + F(1, 2))):
        x = F(0)
        for _ in range(2):
            x -= eta * gradient(x)
        ends.append(x)
    assert sum(ends) / 2 == eta**2 / 2 > 0


def test_a6_one_client_divides_by_zero():
    """(n - r) / (n - 1) at n = r = 1; the package takes 0, as for any n = r."""
    known = Assumptions(smoothness=2.0, strong_convexity=1.0, gradient_variance=1.0)
    with pytest.raises(ZeroDivisionError):
        F(1 - 1, 1 - 1)
    bound = StronglyConvexBound(assumptions=known, num_clients=1, clients_per_round=1, local_steps=2)
    assert bound.b1 == 0.0 and math.isfinite(bound.at(bound.first_round, 1.0))


def test_b9_round_0_multiplies_the_error_exponentially_in_tau():
    """x^2 L / 2 with mu = 1, exact gradients, eta_0 = 4 / mu: |1 - 4 L / mu|^tau after tau steps."""
    for tau in (1, 2, 10):
        x = F(1)
        for _ in range(tau):
            x -= 4 * 10 * x
        assert x**2 == F(39) ** (2 * tau)
    assert 10**31 < x**2 < 10**32


def test_c7_no_tau_is_admitted_for_a_single_step_even_without_the_condition_on_t():
    """The roots of the stated and the derived limit, and the corrected left side at tau = T = 1."""
    for q, n, r in ((0.0, 10, 10), (1.0, 10, 5), (0.0, 1, 1)):
        given = {
            "assumptions": Assumptions(smoothness=1.0, gradient_variance=1.0, variance_bound=q),
            "num_clients": n,
            "clients_per_round": r,
            "local_steps": 1,
            "total_steps": 1,
        }
        for variant, divisor in (("as_stated", 8), ("as_derived", 4)):
            bound = NonConvexBound(**given, variant=variant)
            assert (math.sqrt(bound.b2**2 + 0.8) - bound.b2) / divisor < 1
        exact = NonConvexBound(**given, variant="corrected")
        assert exact._left_side(1) >= 1  # 1 + B2: admitted at most in the limit B2 = 0


def test_a2_shared_quantizer_draws_break_lemma_3():
    """Q(u) = u (1 +- sqrt(q)) with one sign for all clients has the variance of one client, not 1/n of it."""
    updates, root_q = np.array([[1.0, 2.0], [1.0, 2.0], [1.0, 2.0]]), 0.5
    own = [
        np.square((np.array(signs)[:, None] * root_q * updates).mean(axis=0)).sum()
        for signs in itertools.product((1, -1), repeat=3)
    ]
    shared = [np.square((sign * root_q * updates).mean(axis=0)).sum() for sign in (1, -1)]
    lemma_3 = root_q**2 / 9 * np.square(updates).sum()
    assert np.mean(own) == pytest.approx(lemma_3)
    assert np.mean(shared) == pytest.approx(3 * lemma_3)


def test_b1_gradient_descent_contracts_without_eta_below_mu_over_l_squared():
    """For eta <= 1 / L one step shrinks ||x - x*||^2 by 1 - mu eta, also where mu / L^2 < eta.

    Checked on a convex loss with curvature between mu and L that is not quadratic:
    f(x) = mu/2 ||x||^2 + (L - mu) sum log cosh(x_j); x* = 0.
    """
    L, mu = 10.0, 1.0
    x = np.random.default_rng(0).normal(scale=3.0, size=(1000, 4))
    for eta in (mu / L**2, 0.5 / L, 1 / L):
        moved = x - eta * (mu * x + (L - mu) * np.tanh(x))
        assert np.all(np.square(moved).sum(1) <= (1 - mu * eta) * np.square(x).sum(1) * (1 + 1e-12))


def drift_of_local_sgd(curvature: F, eta: F, steps: int) -> list[F]:
    """Return a_0, a_1, ...: E(x_t - beta_t)^2 of SGD against GD on curvature/2 x^2, noise variance 1."""
    drift = [F(0)]
    for _ in range(steps):
        drift.append((1 - eta * curvature) ** 2 * drift[-1] + eta**2)
    return drift


def test_b2_the_dropped_cross_terms_are_not_zero_but_negative_for_a_convex_loss():
    """On x^2 / 2 with eta = 1/4: the proof's equality for a_2 misses -2 eta^3 sigma^2."""
    eta = F(1, 4)
    a = drift_of_local_sgd(F(1), eta, 2)
    without_cross_terms = 2 * eta**2 + eta**2 * a[1]  # noise twice, and the gradient difference
    assert a[2] - without_cross_terms == -2 * eta**3


@given(st.fractions(0, 1), st.integers(2, 12), st.fractions(F(1, 100), 1))
def test_b2_one_step_at_a_time_gives_a_smaller_drift_than_the_proof(curvature, tau, eta_tau):
    eta, L = eta_tau / tau, F(1)
    drift = drift_of_local_sgd(curvature, eta, tau)
    for t in range(1, tau):
        proof = tau * eta**2 * (1 + tau * L**2 * eta**2) ** (t - 1)
        assert drift[t] <= t * eta**2 <= proof


@given(arrays(np.float64, (6, 3), elements=st.floats(-5, 5)))
def test_b3_the_factor_4_of_lemma_4_is_1(z):
    exact = np.square(z - z.mean(0)).sum()
    assert exact == pytest.approx(np.square(z).sum() - 6 * np.square(z.mean(0)).sum(), abs=1e-9)
    assert exact <= np.square(z).sum() * (1 + 1e-12)


def lemma_5_bound(k, k0, k1, first, a, b):
    return (k0 + k1) ** 2 / (k + k1) ** 2 * first + a / (k + k1) + b / (k + k1) ** 2


def test_b4_lemma_5_fails_for_small_k0_plus_k1():
    """k0 = 1, k1 = 1/10, a = 1, b = 0, delta_1 = 0: the recursion allows 100/121, the lemma says 10/21."""
    allowed = (1 - 2 / F(11, 10)) * 0 + 1 / F(11, 10) ** 2
    assert allowed == F(100, 121) > lemma_5_bound(2, 1, F(1, 10), 0, 1, 0) == F(10, 21)


@given(st.integers(2, 40), st.fractions(0, 1), st.fractions(0, 5), st.fractions(0, 5), st.fractions(0, 5))
def test_b4_lemma_5_holds_from_two_on(k0, k1, first, a, b):
    delta = first
    for k in range(k0, k0 + 30):
        assert delta <= lemma_5_bound(k, k0, k1, first, a, b)
        s = k + k1
        delta = float((1 - 2 / s) * delta + a / s**2 + b / s**4)
        delta = F(delta) * (1 - F(1, 10**12))  # keep the fractions short, rounding downwards


def test_b5_the_schedule_explodes_before_k0():
    """L / mu = 10, tau = 5, no noise: the error along the steepest axis grows 2.6 x 10^29-fold in 4 rounds."""
    schedule = StronglyConvexBound(
        assumptions=Assumptions(smoothness=10.0, strong_convexity=1.0, gradient_variance=0.0),
        num_clients=1,
        clients_per_round=1,
        local_steps=5,
    ).step_size()
    growth = math.prod((1 - 10.0 * schedule(k)) ** (2 * 5) for k in range(4))
    assert growth == pytest.approx(2.6e29, rel=0.02)


def test_b7_noise_of_a_round_grows_like_tau_and_not_its_square():
    """On x^2 / 2 the variance of a client's sum of tau gradients' noise is below tau sigma^2."""
    eta, tau = F(1, 100), 10
    assert drift_of_local_sgd(F(1), eta, tau)[tau] / eta**2 < tau


def test_c1_statement_drops_a_factor_4():
    setting = NonConvexBound(
        assumptions=Assumptions(smoothness=1.0, gradient_variance=1.0, variance_bound=0.5),
        num_clients=11,
        clients_per_round=1,
        local_steps=2,
        total_steps=100,
    )
    # n = 11, r = 1: n rho = 11, so 1 + n rho = 12 and 1 + 4 n rho = 45; (1 + q) / n = 3/22.
    assert setting.n1 == pytest.approx(float(F(3, 22) * 12))
    assert replace(setting, variant="as_derived").n1 == pytest.approx(float(F(3, 22) * 45))


def test_c2_the_quadratic_has_a_4_in_its_root():
    """2 L^2 y^2 + L B2 y = 1/10 at y = (sqrt(B2^2 + 0.8) - B2) / (4 L), and not at half of that."""
    L, b2 = F(3), F(4, 5)
    y = (F(6, 5) - b2) / (4 * L)
    assert 2 * L**2 * y**2 + L * b2 * y == F(1, 10)
    assert 2 * L**2 * (y / 2) ** 2 + L * b2 * y / 2 < F(1, 10)


def test_c3_noise_is_not_orthogonal_to_the_gradients_it_moved():
    """f = cos (L = 1), x_k = 0, tau = 2, noise +-1: the proof bounds E||x_{k,2} - x_k||^2 too low."""
    for eta in (0.01, 0.1, 0.5):
        moves, gradients = [], []
        for first, second in itertools.product((1.0, -1.0), repeat=2):
            x1 = 0.0 - eta * (-math.sin(0.0) + first)
            x2 = x1 - eta * (-math.sin(x1) + second)
            moves.append(x2**2)
            gradients.append(math.sin(0.0) ** 2 + math.sin(x1) ** 2)
        claimed = eta**2 * (2 * 1.0 + 2 * np.mean(gradients))  # tau sigma^2 + tau sum ||grad f||^2
        assert np.mean(moves) > claimed
        assert np.mean(moves) <= 2 * claimed  # with the factor of E||a + b||^2 <= 2 (E||a||^2 + E||b||^2)


def test_c3_lemma_7_survives():
    """f = cos, two clients, two local steps, all 16 noises: the clients' spread stays under the bound.

    Squares about the mean leave room for the missing factor 2: 2 n <= 2 (n + 1) and 2 <= 4.
    """
    eta, spreads, gradients = 0.3, [], []
    for noise in itertools.product((1.0, -1.0), repeat=4):
        steps = np.array(noise).reshape(2, 2)  # (step, client)
        first = 0.0 - eta * (0.0 + steps[0])
        second = first - eta * (-np.sin(first) + steps[1])
        spreads.append(np.square(second - second.mean()).sum())
        gradients.append(np.square(np.sin(first)).sum())
    corrected = 2 * eta**2 * 2 * (2 * 1.0 + np.mean(gradients))  # 2 eta^2 t (n sigma^2 + sum ||grad f||^2)
    paper = 2 * eta**2 * 2 * (3 * 1.0 + 2 * np.mean(gradients))
    assert np.mean(spreads) <= corrected <= paper


def test_c5_the_condition_itself_admits_six_times_more_local_steps():
    setting = NonConvexBound(
        assumptions=Assumptions(smoothness=1.0, gradient_variance=1.0),
        num_clients=10,
        clients_per_round=10,
        local_steps=1,
        total_steps=10**6,
    )
    # sqrt(0.8) / 8 = 0.1118, sqrt(0.8) / 4 = 0.2236; tau (tau - 1) <= T - sqrt(T): nearly sqrt(T).
    limits = [replace(setting, variant=v).largest_local_steps for v in ("as_stated", "as_derived", "corrected")]
    assert limits == [111, 223, 1000]


def test_lemma_1_splits_the_error_into_three_terms_exactly():
    """All 2^9 outcomes of Example 1 with s = 1 for 3 clients in 3 dimensions, and all 3 pairs of clients."""
    updates = np.random.default_rng(1).normal(size=(3, 3))
    error = np.array([0.7, -1.1, 0.4])  # x_k - x*
    norms = np.linalg.norm(updates, axis=1)
    up = np.abs(updates) / norms[:, None]  # probability that a coordinate becomes +-norm
    pairs = list(itertools.combinations(range(3), 2))
    whole = sampling = quantization = 0.0
    for outcome in itertools.product((0, 1), repeat=9):
        hit = np.array(outcome).reshape(3, 3)
        probability = float(np.where(hit == 1, up, 1 - up).prod())
        messages = hit * np.sign(updates) * norms[:, None]
        everyone = messages.mean(0)
        quantization += probability * np.square(everyone - updates.mean(0)).sum()
        for pair in pairs:
            mean = messages[list(pair)].mean(0)
            whole += probability / 3 * np.square(error + mean).sum()
            sampling += probability / 3 * np.square(mean - everyone).sum()
    average = np.square(error + updates.mean(0)).sum()
    assert whole == pytest.approx(sampling + quantization + average, rel=1e-12)
    # Lemma 3 and 4 with the exact variance of Example 1 at s = 1: norm^2 (||u||_1 / ||u||_2 - 1).
    variances = norms * np.abs(updates).sum(1) - norms**2
    assert quantization == pytest.approx(variances.sum() / 9, rel=1e-12)
