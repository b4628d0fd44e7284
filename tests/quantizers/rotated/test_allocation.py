"""Allocation: bits go where the energy is, and blocks are as many as pay."""

from __future__ import annotations

import math

import numpy as np

from fedpaq.quantizers.rotated.allocation import allocate, candidates, densities, half_steps, share


def test_shares_spend_the_bits_and_follow_the_root_mean_square():
    energies = np.array([1.0, 4.0, 0.0, 1e-6])
    few = np.arcsinh(share(energies, 1024, 40.0)) / math.log(2)
    assert math.isclose(few.sum() * 1024, 40.0, rel_tol=1e-3)
    assert math.isclose(few[1] / few[0], 2.0, rel_tol=1e-3)
    many = np.arcsinh(share(energies[:2], 1024, 16_384.0)) / math.log(2)
    assert math.isclose(many[1] - many[0], 1.0, rel_tol=1e-3)  # an octave of amplitude is a bit
    assert few[2] == 0


def test_the_curve_is_that_of_the_issue():
    rates = np.array([0.01, 0.03, 0.1, 0.25, 0.5, 1.0])
    assert np.allclose(half_steps(rates), [3.36, 3.00, 2.54, 2.12, 1.73, 1.21], atol=0.01)
    assert np.allclose(densities(rates[:3]), [0.00078, 0.00274, 0.01122], rtol=0.01)


def test_uneven_updates_are_cut_into_more_blocks_than_even_ones():
    even, uneven = np.ones(1000), np.exp(-np.arange(1000) / 50)
    assert allocate(uneven, 64_000, 20_000).blocks.count > allocate(even, 64_000, 20_000).blocks.count
    assert allocate(uneven, 64_000, 20_000).error < allocate(even, 64_000, 20_000).error
    assert all(blocks.fits for p in (1, 2, 785, 92_027, 10**9) for blocks in candidates(p, 1e4))


def test_no_energy_has_no_bits_and_no_bits_no_shares():
    assert not share(np.zeros(3), 64, 100.0).any()
    assert not share(np.ones(3), 64, 0.0).any()


def test_more_bits_are_less_error():
    cells = np.random.default_rng(0).random(300)
    errors = [allocate(cells, 300 * 64, bits).error for bits in (200, 1000, 5000, 40_000)]
    assert errors == sorted(errors, reverse=True)
