"""Theorem 1: by hand, along the proof, and against exactly solvable runs."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction as F

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpaq.config import FedPAQConfig
from fedpaq.errors import ConfigError
from fedpaq.theory import Assumptions, StronglyConvexBound, StronglyConvexStepSize

VARIANTS = ["as_stated", "as_derived", "corrected"]

# Setting A: n=4, r=2, tau=2, L=2, mu=1, sigma^2=3, q=1/2.
SETTING_A = StronglyConvexBound(
    assumptions=Assumptions(smoothness=2.0, strong_convexity=1.0, gradient_variance=3.0, variance_bound=0.5),
    num_clients=4,
    clients_per_round=2,
    local_steps=2,
)
# Setting B, parallel SGD with a large condition number: n=r=2, tau=1, L=20, mu=1, sigma^2=8, q=0.
SETTING_B = StronglyConvexBound(
    assumptions=Assumptions(smoothness=20.0, strong_convexity=1.0, gradient_variance=8.0),
    num_clients=2,
    clients_per_round=2,
    local_steps=1,
)


def test_setting_a_by_hand():
    rho = F(4 - 2, 2 * (4 - 1))  # (n - r) / (r (n - 1)) = 1/3
    b1 = 2 * 2**2 * (F(1, 2) / 4 + rho * 4 * (1 + F(1, 2)))  # 8 (1/8 + 2) = 17
    c1 = F(16 * 3, 1 * 4) * (1 + 2 * F(1, 2) + 8 * F(3, 2) * 4 * rho)  # 12 (2 + 16) = 216
    c2_over_e = F(16 * 4 * 3, 1 * 4)  # 48
    c3_over_e = F(256 * 4 * 3, 1 * 4) * (4 + 2 * F(1, 2) + 8 * F(3, 2) * 4 * rho)  # 768 * 21 = 16128
    k0 = 4 * max(F(2, 1), 4 * (b1 + 1), F(1, 2), F(4 * 4, 2))  # 4 max{2, 72, 1/2, 8} = 288
    assert (b1, c1, c2_over_e, c3_over_e, k0) == (17, 216, 48, 16128, 288)

    assert SETTING_A.b1 == pytest.approx(17, rel=1e-14)
    assert SETTING_A.c1 == pytest.approx(216, rel=1e-14)
    assert SETTING_A.c2 == pytest.approx(48 * math.e, rel=1e-14)
    assert SETTING_A.c3 == pytest.approx(16128 * math.e, rel=1e-14)
    assert SETTING_A.first_round == 288
    # k = 300: k tau + 1 = 601 and k0 tau + 1 = 577; E||x_k0 - x*||^2 = 5.
    by_hand = [F(577, 601) ** 2 * 5, F(216 * 2, 601), F(48, 601), F(16128, 601**2)]
    expected = [float(by_hand[0]), float(by_hand[1]), math.e * by_hand[2], math.e * by_hand[3]]
    assert SETTING_A.terms_at(300, initial_error=5.0) == pytest.approx(expected, rel=1e-14)
    assert SETTING_A.at(300, initial_error=5.0) == pytest.approx(sum(expected), rel=1e-14)


def test_setting_b_by_hand():
    # rho = 0 and q = 0, so B1 = 0; tau = 1 leaves only C1 = 16 * 8 / 2 = 64 in the bound.
    # k0 = 4 max{20, 4, 1, 4*2/1} = 80; the proof's own eta <= mu / L^2 = 1/400 needs 4 * 400 = 1600.
    assert (SETTING_B.b1, SETTING_B.c1, SETTING_B.first_round) == (0.0, 64.0, 80)
    assert replace(SETTING_B, variant="as_derived").first_round == 1600
    # k = 161: k + 1 = 162 = 2 (k0 + 1), so the bound is 3/4 + 64/162.
    assert SETTING_B.at(161, initial_error=3.0) == pytest.approx(float(F(3, 4) + F(64, 162)), rel=1e-14)


def test_corrected_constants_by_hand():
    a = replace(SETTING_A, variant="corrected")
    assert a.b1 == pytest.approx(float(8 * (F(1, 8) + F(1, 3) * F(3, 2))), rel=1e-14)  # 5
    assert a.first_round == 96  # 4 max{2, 4 * 6, 1/2, 8}
    assert a.c1 == pytest.approx(12 * (2 + 4), rel=1e-14)  # 2 (1 + q) n rho = 2 * 3/2 * 4/3 = 4
    assert a.c2 == pytest.approx(24, rel=1e-14)
    assert a.c3 == pytest.approx(384 * (4 + 1 + 4), rel=1e-14)


def test_a_batch_acts_like_a_smaller_variance():
    assumptions = replace(SETTING_A.assumptions, gradient_variance=30.0)
    batched = replace(SETTING_A, assumptions=assumptions, batch_size=10)
    assert (batched.c1, batched.c2, batched.c3) == (SETTING_A.c1, SETTING_A.c2, SETTING_A.c3)


def test_schedule_runs_as_the_step_size_of_a_configuration():
    schedule = SETTING_A.step_size()
    config = FedPAQConfig(clients_per_round=2, local_steps=2, total_steps=4, step_size=schedule)
    assert config.step_size_at(0) == 4.0
    assert config.step_size_at(1) == 4.0 / 3
    assert SETTING_A.step_size(start=288)(0) == 4.0 / 577


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"local_steps": 0}, "local_steps=0"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"variant": "derived"}, "unknown variant"),
        ({"assumptions": Assumptions(smoothness=1.0, gradient_variance=1.0)}, "strong_convexity=None"),
    ],
)
def test_settings_outside_the_theorem_are_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        replace(SETTING_A, **change)


def test_rounds_before_k0_have_no_bound():
    with pytest.raises(ConfigError, match="round=287 is out of range"):
        SETTING_A.at(287, initial_error=1.0)


def test_schedule_refuses_bad_parameters():
    with pytest.raises(ConfigError, match="start=-1"):
        StronglyConvexStepSize(strong_convexity=1.0, local_steps=1, start=-1)


def _settings():
    """Settings of every kind, including one client, all clients, no noise and no quantizer."""
    return st.builds(
        lambda n, share, tau, mu, kappa, sigma2, q: StronglyConvexBound(
            assumptions=Assumptions(
                smoothness=mu * kappa, strong_convexity=mu, gradient_variance=sigma2, variance_bound=q
            ),
            num_clients=n,
            clients_per_round=max(1, math.ceil(share * n)),
            local_steps=tau,
        ),
        st.integers(1, 60),
        st.floats(0, 1),
        st.integers(1, 20),
        st.floats(0.05, 20),
        st.floats(1, 40),
        st.floats(0, 100),
        st.floats(0, 30),
    )


@given(_settings())
def test_the_theorem_as_stated_is_never_below_the_corrected_one(stated):
    corrected = replace(stated, variant="corrected")
    for name in ("b1", "c1", "c2", "c3", "first_round"):
        assert getattr(stated, name) >= getattr(corrected, name)


@given(_settings(), st.sampled_from(["as_derived", "corrected"]))
def test_k0_is_late_enough_for_every_condition_of_the_proof(bound, variant):
    bound = replace(bound, variant=variant)
    for later in (0, 1, 1000):
        for condition in bound.conditions(bound.first_round + later):
            assert condition.left <= condition.right * (1 + 1e-12), condition


def test_k0_as_stated_misses_the_condition_of_lemma_2():
    unmet = [condition.text for condition in SETTING_B.conditions() if not condition.holds]
    assert unmet == ["eta <= mu / L^2"]


def lemma_terms(bound, eta):
    """Return (coefficient of the error, constant) of Lemmas 2, 3 and 4 at one step size.

    Written from the lemmas themselves, one by one, so that nothing is shared with the module.
    """
    a = bound.assumptions
    L, mu, s2, q = a.smoothness, a.strong_convexity, a.gradient_variance, a.variance_bound
    n, r, tau = bound.num_clients, bound.clients_per_round, bound.local_steps
    sharp = bound.variant == "corrected"
    # a_1 + ... + a_{tau-1}, the local iterates' squared distances from gradient descent
    if sharp:
        drift = sum(t * eta**2 * s2 for t in range(1, tau))
    else:
        drift = sum(tau * eta**2 * s2 * (1 + tau * L**2 * eta**2) ** (t - 1) for t in range(1, tau))
    bias = (tau - 1) * L**2 * drift  # ||E e_k||^2
    spread = tau * (tau * s2 / n + L**2 * drift)  # E||e_k||^2
    lemma2 = (1 + n * eta**2) * (1 - mu * eta) ** tau, bias / n + eta**2 * spread
    move = 2 * eta**2 * tau**2 * L**2, 2 * eta**2 * tau * (tau * s2 + L**2 * drift)  # E||x_i - x_k||^2
    lemma3 = q / n * move[0], q / n * move[1]
    factor = 0 if r == n else (1 if sharp else 4) * (1 + q) * n * (1 - r / n) / (r * (n - 1))
    lemma4 = factor * move[0], factor * move[1]
    return tuple(sum(parts) for parts in zip(lemma2, lemma3, lemma4, strict=True))


@settings(deadline=None, max_examples=60)
@given(_settings(), st.sampled_from(["as_derived", "corrected"]), st.floats(0, 10))
def test_bound_lies_above_the_chain_of_lemmas(bound, variant, initial_error):
    """Lemma 1 adds Lemmas 2 to 4: iterate that recursion from k0 and compare."""
    bound = replace(bound, variant=variant)
    error = initial_error
    for k in range(bound.first_round, bound.first_round + 300):
        assert error <= bound.at(k, initial_error) * (1 + 1e-9)
        contraction, noise = lemma_terms(bound, bound.step_size()(k))
        mu, tau, eta = bound.assumptions.strong_convexity, bound.local_steps, bound.step_size()(k)
        assert contraction <= 1 - mu * tau * eta / 2 + 1e-12  # C0 of the proof
        error = contraction * error + noise


def exact_errors(bound, start, num_rounds, curvatures, errors):
    """Return E||x_k - x*||^2 of FedPAQ on a quadratic, exactly, from second moments.

    f(x) = 1/2 sum_j curvature_j x_j^2, additive noise sigma^2 / p a coordinate, and the quantizer
    Q(u) = u (1 +- sqrt(q)), whose variance is q ||u||^2 and no less. A client's update is
    (a^tau - 1) x + noise with a = 1 - eta curvature; the mean of r of them is what moves x.
    """
    a = bound.assumptions
    out, moments = [float(errors.sum())], errors.copy()
    for k in range(start, start + num_rounds):
        eta = bound.step_size()(k)
        shrink = 1 - eta * curvatures
        noise = eta**2 * a.gradient_variance / curvatures.size
        noise = noise * sum(shrink ** (2 * t) for t in range(bound.local_steps))
        drift = shrink**bound.local_steps
        quantized = a.variance_bound * ((drift - 1) ** 2 * moments + noise)
        moments = drift**2 * moments + (noise + quantized) / bound.clients_per_round
        out.append(float(moments.sum()))
    return np.array(out)


@pytest.mark.parametrize("variant", VARIANTS)
@settings(deadline=None, max_examples=40)
@given(bound=_settings(), initial_error=st.floats(0.01, 100))
def test_exact_error_on_quadratics_stays_under_the_bound(variant, bound, initial_error):
    bound = replace(bound, variant=variant)
    a = bound.assumptions
    curvatures = np.geomspace(a.strong_convexity, a.smoothness, 5)
    k0 = bound.first_round
    exact = exact_errors(bound, k0, 200, curvatures, np.full(5, initial_error / 5))
    bounds = [bound.at(k, initial_error) for k in range(k0, k0 + 201)]
    assert np.all(exact <= np.array(bounds) * (1 + 1e-9))


def test_bound_falls_like_one_over_the_steps():
    rounds = [10**5, 10**6]
    values = [SETTING_A.at(k, initial_error=1.0) for k in rounds]
    assert values[0] / values[1] == pytest.approx(10.0, rel=0.01)


def test_parallel_sgd_gains_linearly_from_clients():
    """tau = 1, q = 0, r = n: the noise term is 16 sigma^2 / (mu^2 n (k + 1))."""
    for n in (1, 10, 100):
        bound = replace(SETTING_B, num_clients=n, clients_per_round=n)
        k = bound.first_round
        assert bound.terms_at(k, initial_error=0.0)[1:] == pytest.approx((128 / (n * (k + 1)), 0, 0))


@given(_settings(), st.floats(0.1, 10))
def test_loss_scale_is_the_theorem_for_the_scaled_loss(bound, scale):
    """c f has constants c L, c mu, c^2 sigma^2, and the same iterates with steps divided by c."""
    a = bound.assumptions
    scaled_loss = replace(
        bound,
        assumptions=Assumptions(
            smoothness=a.smoothness * scale,
            strong_convexity=a.strong_convexity * scale,
            gradient_variance=a.gradient_variance * scale**2,
            variance_bound=a.variance_bound,
        ),
    )
    same = replace(bound, loss_scale=scale)
    for name in ("c1", "c2", "c3"):
        assert getattr(same, name) == pytest.approx(getattr(scaled_loss, name))
    assert abs(same.first_round - scaled_loss.first_round) <= 1  # rounding before the ceiling
    assert same.step_size()(7) == pytest.approx(scaled_loss.step_size()(7) * scale)


def test_loss_scale_is_refused_when_not_positive():
    with pytest.raises(ConfigError, match="loss_scale=0"):
        replace(SETTING_A, loss_scale=0.0)


def test_a_later_start_takes_its_own_error():
    assert SETTING_A.at(400, initial_error=2.0, since=400) == pytest.approx(
        2.0 + sum(SETTING_A.terms_at(400, initial_error=0.0))
    )
    with pytest.raises(ConfigError, match="since=287"):
        SETTING_A.at(400, initial_error=2.0, since=287)
