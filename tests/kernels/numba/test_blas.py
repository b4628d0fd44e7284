"""BLAS from machine code: products as NumPy has them."""

from __future__ import annotations

import numpy as np
import pytest

from fedpaq.kernels.numba import blas


@pytest.mark.parametrize("letters", ["NN", "NT", "TN"])
def test_a_product_is_that_of_numpy(letters, rng):
    m, n, k = 5, 7, 3
    a, b, c = (rng.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n), (m, n)))
    stored_a, stored_b = a.T if letters[0] == "N" else a, b.T if letters[1] == "N" else b  # column by column
    out = c.T.ravel().copy()
    blas.gemm(
        getattr(blas, letters), (m, n, k), np.float32(0.5), stored_a.ravel(), stored_a.shape[1],
        stored_b.ravel(), stored_b.shape[1], np.float32(2.0), out, m, (np.empty(6, np.int32), np.empty(2, np.float32)),
    )  # fmt: skip
    np.testing.assert_allclose(out.reshape(n, m).T, 0.5 * a @ b + 2 * c, rtol=1e-5, atol=1e-5)


def test_a_copy_fills_its_target(rng):
    source, target = rng.standard_normal(9), np.zeros(4)
    blas.copy(source, target)
    assert np.array_equal(target, source[:4])
