"""Theorem 2: by hand, along the proof, and against exactly solvable runs."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction as F

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedpaq.config import FedPAQConfig
from fedpaq.errors import ConfigError
from fedpaq.theory import Assumptions, NonConvexBound

VARIANTS = ["as_stated", "as_derived", "corrected"]

# Setting A: n=r=10, q=1, tau=2, T=400, L=2, sigma^2=5.
SETTING_A = NonConvexBound(
    assumptions=Assumptions(smoothness=2.0, gradient_variance=5.0, variance_bound=1.0),
    num_clients=10,
    clients_per_round=10,
    local_steps=2,
    total_steps=400,
)
# Setting B: n=6, r=3, q=0, tau=2, T=1600, L=3, sigma^2=7.
SETTING_B = NonConvexBound(
    assumptions=Assumptions(smoothness=3.0, gradient_variance=7.0),
    num_clients=6,
    clients_per_round=3,
    local_steps=2,
    total_steps=1600,
)


def test_setting_a_by_hand():
    b2 = F(1, 10) + 0  # q / n; all take part
    root = F(9, 10)
    assert root**2 == b2**2 + F(8, 10)  # 81/100 = 1/100 + 80/100
    assert (root - b2) / 8 * 20 == 2  # admissible tau as stated, sqrt(T) = 20
    assert (root - b2) / 4 * 20 == 4  # as derived
    n1, n2 = 2 * F(5, 10) * 1, F(5, 10) * 11  # (1 + q) sigma^2 / n, sigma^2 (n + 1) / n
    terms = [2 * 2 * F(3) / 20, n1 / 20, n2 / 400]  # f(x_0) - f* = 3

    assert (SETTING_A.b2, SETTING_A.n1, SETTING_A.n2) == pytest.approx((0.1, 1.0, 5.5), rel=1e-14)
    assert SETTING_A.largest_local_steps == 2
    assert replace(SETTING_A, variant="as_derived").largest_local_steps == 4
    assert SETTING_A.holds
    assert SETTING_A.terms(initial_gap=3.0) == pytest.approx([float(term) for term in terms], rel=1e-14)
    assert SETTING_A.at(initial_gap=3.0) == pytest.approx(float(sum(terms)), rel=1e-14)


def test_setting_b_by_hand():
    rho = F(6 - 3, 3 * (6 - 1))  # 1/5
    b2 = 4 * rho  # 4/5
    root = F(12, 10)
    assert root**2 == b2**2 + F(8, 10)  # 144/100 = 64/100 + 80/100
    assert ((root - b2) / 8 * 40, (root - b2) / 4 * 40) == (2, 4)
    stated, derived = F(7, 6) * (1 + 6 * rho), F(7, 6) * (1 + 4 * 6 * rho)  # 77/30 and 203/30
    assert (stated, derived) == (F(77, 30), F(203, 30))

    assert SETTING_B.b2 == pytest.approx(0.8, rel=1e-14)
    assert SETTING_B.n1 == pytest.approx(float(stated), rel=1e-14)
    assert replace(SETTING_B, variant="as_derived").n1 == pytest.approx(float(derived), rel=1e-14)
    assert SETTING_B.n2 == pytest.approx(float(F(49, 6)), rel=1e-14)
    assert SETTING_B.largest_local_steps == 2
    assert replace(SETTING_B, variant="as_derived").largest_local_steps == 4
    by_hand = 2 * 3 * F(1, 2) / 40 + stated / 40 + F(49, 6) / 1600
    assert SETTING_B.at(initial_gap=0.5) == pytest.approx(float(by_hand), rel=1e-14)


def test_corrected_constants_by_hand():
    a, b = (replace(setting, variant="corrected") for setting in (SETTING_A, SETTING_B))
    assert (a.n1, a.n2, a.b2) == pytest.approx((0.5 * (1 + 2), 5.0, 0.2), rel=1e-14)
    assert b.n1 == pytest.approx(float(F(7, 6) * (1 + 2 * 6 * F(1, 5))), rel=1e-14)
    # u = 1/20: 1/20 + 2/10 tau/20 + tau (tau - 1)/400 <= 1, so tau^2 + 3 tau <= 380, met by 18 and not by 19.
    assert a.largest_local_steps == 18


def test_with_one_local_step_the_theorem_as_stated_needs_no_correction():
    stated = replace(SETTING_B, local_steps=1)
    assert replace(stated, variant="corrected").n1 == pytest.approx(stated.n1)


def test_step_size_runs_in_a_configuration():
    config = FedPAQConfig(clients_per_round=3, local_steps=2, total_steps=1600, step_size=SETTING_B.step_size)
    assert config.step_size_at(0) == config.step_size_at(799) == pytest.approx(1 / 120)


def test_paper_experiments_lie_outside_the_theorem():
    """T = 100 admits tau = 1 at most, even without quantization and with all clients."""
    free = replace(SETTING_A, assumptions=Assumptions(smoothness=1.0, gradient_variance=1.0), total_steps=100)
    assert free.largest_local_steps == 1


def test_a_single_step_admits_no_local_steps():
    for variant in VARIANTS:
        assert replace(SETTING_A, total_steps=1, variant=variant).largest_local_steps == 0
        assert not replace(SETTING_A, total_steps=1, variant=variant).holds


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"total_steps": 0}, "total_steps=0"),
        ({"local_steps": 0}, "local_steps=0"),
        ({"clients_per_round": 11}, "clients_per_round=11"),
        ({"variant": "x"}, "unknown variant"),
    ],
)
def test_settings_outside_the_theorem_are_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        replace(SETTING_A, **change)


def test_negative_gap_is_refused():
    with pytest.raises(ConfigError, match=r"initial_gap=-1.0"):
        SETTING_A.at(initial_gap=-1.0)


def _settings():
    return st.builds(
        lambda n, share, tau, rounds, L, sigma2, q: NonConvexBound(
            assumptions=Assumptions(smoothness=L, gradient_variance=sigma2, variance_bound=q),
            num_clients=n,
            clients_per_round=max(1, math.ceil(share * n)),
            local_steps=tau,
            total_steps=tau * rounds,
        ),
        st.integers(1, 60),
        st.floats(0, 1),
        st.integers(1, 12),
        st.integers(1, 20000),
        st.floats(0.05, 20),
        st.floats(0, 100),
        st.floats(0, 30),
    )


def lemma_coefficients(bound):
    """Return what Lemmas 6 to 9 leave of one round at eta = 1 / (L sqrt(T)), lemma by lemma.

    (coefficient of -eta / (2n) sum ||grad f(x_i)||^2, which must not be negative; constant).
    """
    a, n, r, tau = bound.assumptions, bound.num_clients, bound.clients_per_round, bound.local_steps
    L, s2, q = a.smoothness, a.gradient_variance, a.variance_bound
    eta = 1 / (L * math.sqrt(bound.total_steps))
    sharp = bound.variant == "corrected"
    y = 2 if sharp and tau > 1 else 1
    steps = tau * (tau - 1) / 2  # 0 + 1 + ... + (tau - 1)
    # sum_t sum_i ||xbar - x_i||^2 <= apart[0] sum ||grad||^2 + apart[1]
    apart = (2 * eta**2 * steps, 2 * eta**2 * s2 * n * steps)
    if not sharp:
        apart = (4 * eta**2 * steps, 2 * eta**2 * s2 * (n + 1) * steps)
    lemma7 = 1 - L * eta - L**2 * apart[0], eta**2 * L / 2 * s2 / n * tau + eta / (2 * n) * L**2 * apart[1]
    # sum_i ||x_i - x_k||^2 <= move[0] sum ||grad||^2 + move[1]
    move = (y * eta**2 * tau, y * eta**2 * tau * s2 * n)
    sampled = 0 if r == n else (1 if sharp else 4) * (1 + q) * (1 - r / n) / (r * (n - 1))
    lemmas89 = L / 2 * (q / n**2 + sampled)
    coefficient = lemma7[0] - lemmas89 * move[0] * 2 * n / eta
    return coefficient, lemma7[1] + lemmas89 * move[1]


@settings(deadline=None)
@given(_settings(), st.sampled_from(["as_derived", "corrected"]), st.floats(0, 10))
def test_bound_is_the_sum_of_the_lemmas(bound, variant, initial_gap):
    bound = replace(bound, variant=variant)
    eta = bound.step_size(0)
    num_rounds = bound.total_steps // bound.local_steps
    chain = 2 / (eta * bound.total_steps) * (initial_gap + num_rounds * lemma_coefficients(bound)[1])
    assert bound.at(initial_gap) == pytest.approx(chain, rel=1e-9, abs=1e-12)


@settings(deadline=None)
@given(_settings(), st.sampled_from(VARIANTS))
def test_admissible_local_steps_keep_the_gradient_term_non_positive(bound, variant):
    bound = replace(bound, variant=variant)
    assume(bound.holds)
    assert lemma_coefficients(bound)[0] >= -1e-12


@settings(deadline=None)
@given(_settings())
def test_corrected_limit_on_local_steps_is_sharp(bound):
    bound = replace(bound, variant="corrected")
    assume(bound.total_steps >= 2)
    largest = bound.largest_local_steps
    if largest:
        assert lemma_coefficients(replace(bound, local_steps=largest))[0] >= -1e-9
    assert lemma_coefficients(replace(bound, local_steps=largest + 1))[0] <= 1e-9


@settings(deadline=None)
@given(_settings())
def test_the_corrected_theorem_admits_more_local_steps(bound):
    """So whatever the paper admits, the corrected one does."""
    limits = [replace(bound, variant=variant).largest_local_steps for variant in VARIANTS]
    assert limits == sorted(limits)


def exact_mean_square_gradient(bound, curvatures, moments):
    """Return 1/T sum E||grad f(xbar_{k,t})||^2 on a quadratic, exactly; see ``exact_errors`` there."""
    a, eta, tau = bound.assumptions, bound.step_size(0), bound.local_steps
    shrink = 1 - eta * curvatures
    unit = eta**2 * a.gradient_variance / curvatures.size
    noises = np.cumsum([np.zeros_like(shrink)] + [unit * shrink ** (2 * t) for t in range(tau)], axis=0)
    decays = np.array([shrink ** (2 * t) for t in range(tau)])
    drift, total = shrink**tau, 0.0
    for _ in range(bound.total_steps // tau):
        total += (curvatures**2 * (decays * moments + noises[:tau] / bound.num_clients)).sum()
        quantized = a.variance_bound * ((drift - 1) ** 2 * moments + noises[tau])
        moments = drift**2 * moments + (noises[tau] + quantized) / bound.clients_per_round
    return total / bound.total_steps


@pytest.mark.parametrize("variant", VARIANTS)
@settings(deadline=None, max_examples=15)
@given(bound=_settings(), scale=st.floats(0.01, 10))
def test_exact_gradients_on_quadratics_stay_under_the_bound(variant, bound, scale):
    bound = replace(bound, variant=variant, total_steps=20_000)
    tau = min(bound.local_steps, bound.largest_local_steps)
    assume(tau > 0)
    bound = replace(bound, local_steps=tau, total_steps=tau * (20_000 // tau + 1))
    assert bound.holds
    curvatures = np.geomspace(bound.assumptions.smoothness / 50, bound.assumptions.smoothness, 4)
    start = np.full(4, scale)
    measured = exact_mean_square_gradient(bound, curvatures, start)
    assert measured <= bound.at(initial_gap=float(0.5 * (curvatures * start).sum())) * (1 + 1e-9)


def test_bound_falls_like_one_over_the_root_of_the_steps():
    values = [replace(SETTING_A, total_steps=T).at(initial_gap=1.0) for T in (10**8, 10**10)]
    assert values[0] / values[1] == pytest.approx(10.0, rel=0.01)
