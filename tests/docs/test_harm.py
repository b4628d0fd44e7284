"""What benchmarks/harm.py measures: curvature by products with the Hessian, and what shares of the bits could gain."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
import torch

import fedpaq
from repository import ROOT


@pytest.fixture(scope="module")
def harm():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        yield importlib.import_module("harm")


@pytest.fixture(scope="module")
def quadratic():
    """Least squares whose Hessian is 2 X'X / N: coordinate j has the curvature of column j."""
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((64, 12)).astype(np.float32) * np.linspace(0.5, 3, 12, dtype=np.float32)
    problem = fedpaq.Problem(
        model=torch.nn.Linear(12, 1, bias=False), loss=torch.nn.functional.mse_loss, inputs=inputs,
        targets=rng.standard_normal((64, 1)).astype(np.float32), partition=fedpaq.problems.iid(64, 4),
    )  # fmt: skip
    return problem, 2 * inputs.T.astype(np.float64) @ inputs / 64


def test_the_product_is_that_of_the_hessian(harm, quadratic):
    problem, matrix = quadratic
    times = harm.hessian(problem, problem.initial_params, torch.arange(64))
    vector = np.random.default_rng(1).standard_normal(12).astype(np.float32)
    np.testing.assert_allclose(times(vector), matrix @ vector, rtol=1e-5)


def test_the_harm_of_an_error_is_its_quadratic_form_in_units_of_an_even_one(harm, quadratic):
    problem, matrix = quadratic
    times = harm.hessian(problem, problem.initial_params, torch.arange(64))
    updates = np.random.default_rng(2).standard_normal((3, 12)).astype(np.float32)
    (row,) = harm.harms(times, updates, float(np.trace(matrix)), ["low-precision:3"])
    found = []
    for draw in range(harm.DRAWS):
        for client, update in enumerate(updates):
            key = fedpaq.Key(seed=draw, round=harm.ROUND, client=client)
            error = fedpaq.LowPrecision(3).quantize(update, key=key).dequantize().astype(np.float64) - update
            found.append(12 * error @ matrix @ error / np.trace(matrix) / (update.astype(np.float64) ** 2).sum())
    assert row["harm"] == pytest.approx(np.mean(found), rel=1e-4)


def test_an_even_error_is_best_where_energy_and_curvature_agree_and_only_there(harm):
    energies = np.array([1.0, 2.0, 3.0, 4.0])
    groups = {"each": np.arange(4), "halves": np.arange(4) // 2}
    assert [row["least_over_even"] for row in harm.shares(5 * energies, energies, groups)] == pytest.approx([1, 1])
    each, halves = harm.shares(energies[::-1].copy(), energies, groups)
    assert each["least_over_even"] == pytest.approx((2 * 2 + 2 * 6**0.5) ** 2 / 100)
    assert halves["least_over_even"] == pytest.approx((2 * 21**0.5) ** 2 / 100)
    assert (each["count"], halves["count"]) == (4, 2)
