"""Decisions by machine code are the twin's; close ones are left to it."""

from __future__ import annotations

import numpy as np
import pytest

import fedpaq
from fedpaq.kernels import numba as compiled
from fedpaq.quantizers.rotated import decisions, plans
from fedpaq.quantizers.rotated.allocation import body_bits, candidates
from fedpaq.quantizers.rotated.rotation import CELL

CASES = [(92_027, 0.03), (92_027, 1.0), (5000, 0.1), (20_000, 2.5), (300_001, 0.01), (11_172_170, 0.1)]
# The last has so many blocks that the product of their rates overflows.


def table_of(dimension, bits, updates=400):
    """Return the bits, cuts, energies, where each cut's begin, and totals of updates of every unevenness."""
    rng, cells = np.random.default_rng(3), -(-dimension // CELL)
    found = rng.random((updates, cells)) * np.exp(8 * rng.random((updates, 1)) * np.linspace(0, 1, cells))
    found[0, : cells // 2], found[1, 1:], found[2], found[3] = 0.0, 0.0, 1.0, 1e-30
    body = body_bits(dimension, fedpaq.Rotated(bits=bits).target_bytes(dimension))
    cuts = candidates(dimension, body)
    parts = [np.add.reduceat(found, np.arange(cut.count) * (cut.length // CELL), axis=1) for cut in cuts]
    firsts = np.cumsum([0, *(cut.count for cut in cuts)])[:-1].tolist()
    return body, cuts, np.concatenate(parts, axis=1), firsts, parts[0][:, 0].copy()


@pytest.mark.parametrize(("dimension", "bits"), CASES)
def test_what_is_compiled_decides_as_its_twin(dimension, bits, monkeypatch):
    updates = 400 if dimension < 10**6 else 12
    body, cuts, energies, firsts, totals = table_of(dimension, bits, updates)
    asked, twin = [], decisions._decide_closely
    monkeypatch.setattr(
        decisions, "_decide_closely", lambda found, rows, *rest: asked.append(len(rows)) or twin(found, rows, *rest)
    )
    here = decisions.decide(cuts, energies, firsts, totals, body)
    monkeypatch.setattr(compiled, "load", lambda name: None)
    there = decisions.decide(cuts, energies, firsts, totals, body)
    assert asked[0] < (5 if bits < 0.05 else updates + 1) and asked[1] == updates  # sparse ones are clear
    assert len(np.unique(there.best)) > 1
    assert np.array_equal(here.best, there.best)
    assert np.array_equal(here.mantissa_bits, there.mantissa_bits)
    np.testing.assert_allclose(here.errors, there.errors, rtol=1e-11)
    for row, best in enumerate(there.best):
        used = slice(cuts[best].count)
        assert np.array_equal(here.wanted[row, used], there.wanted[row, used])
        assert np.array_equal(here.factors[row, used], there.factors[row, used])
        exact = there.wanted[row, used] < 0
        assert np.array_equal(here.least[row, used][exact], there.least[row, used][exact])
    np.testing.assert_allclose(here.least, there.least, rtol=1e-6)


def test_close_calls_are_left_to_the_twin(monkeypatch):
    body, cuts, energies, firsts, totals = table_of(92_027, 0.03)
    clear = decisions.decide(cuts, energies, firsts, totals, body)
    kernels, asked, best_cuts = compiled.load("plans"), [], plans.best_cuts

    def unsure(*arguments):
        kernels.plan(*arguments)
        arguments[-1][::7] = True
        arguments[11][::7] = 0  # a wrong choice, that the twin must replace

    monkeypatch.setattr(compiled, "load", lambda name: type("Kernels", (), {"plan": staticmethod(unsure)}))
    monkeypatch.setattr(plans, "best_cuts", lambda *given: asked.append(len(given[2])) or best_cuts(*given))
    found = decisions.decide(cuts, energies, firsts, totals, body)
    assert asked[0] >= 58
    assert np.array_equal(found.best, clear.best)
    assert np.array_equal(found.mantissa_bits, clear.mantissa_bits)
