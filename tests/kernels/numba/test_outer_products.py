"""Outer products: sums row by row, each product added before it is rounded, as OpenBLAS does for wide layers."""

from __future__ import annotations

import numpy as np
import pytest

from fedpaq.clients.dense import _blas_of_scipy, one_blas_thread
from fedpaq.kernels import numba as compiled
from fedpaq.kernels.numba import outer_products

SHAPES = [  # before, after, rows: of the paper's networks, and with columns and units left over
    (3072, 75, 10), (3072, 75, 30), (3072, 100, 50), (784, 128, 60), (3088, 74, 20), (304, 11, 3), (16, 3, 1),
]  # fmt: skip


def parts(before, after, rows):
    rng = np.random.default_rng(rows)
    source, delta = rng.random((rows, before), np.float32), rng.standard_normal((rows, after), np.float32)
    delta[delta < -0.5] = 0  # units that are off
    delta[:, -1] = 0
    weight = (0.05 * rng.standard_normal((after, before))).astype(np.float32)
    return weight, source, delta, np.float32(0.0877)


def fused(a, b, c):
    """a b + c, rounded once: the product of two float32 has 48 bits, which a long double holds."""
    return (a.astype(np.longdouble) * b + c).astype(np.float32)


def made(weight, source, delta, step_size, fresh):
    after, before = weight.shape
    out = (np.full_like(weight, np.nan) if fresh else weight.copy()).ravel()
    room = np.empty(len(source) * outer_products.COLUMNS, np.float32)
    outer_products.add_outer(out, source.ravel(), delta.ravel(), before, after, len(source), -step_size, fresh, room)
    return out.reshape(after, before)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("fresh", [False, True])
def test_every_number_is_its_rows_in_their_order(shape, fresh):
    weight, source, delta, step_size = parts(*shape)
    total = np.zeros_like(weight)
    for inputs, slopes in zip(source, delta, strict=True):
        total = fused(slopes[:, None], inputs[None, :], total)
    expected = fused(total, -step_size, np.zeros_like(weight) if fresh else weight)
    found = made(weight, source, delta, step_size, fresh)
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("shape", SHAPES[:5], ids=str)
@pytest.mark.parametrize("fresh", [False, True])
def test_a_wide_layer_gets_the_bits_of_blas(shape, fresh):
    before, after, rows = shape
    assert compiled.load("dense_network").is_outer.py_func(rows, before, after, 0.0)
    if {library.architecture for library in _blas_of_scipy()} != {"SkylakeX"}:
        pytest.skip("curves were published from a processor with AVX-512; others have orders of their own")
    from scipy.linalg.blas import sgemm

    weight, source, delta, step_size = parts(*shape)
    by_blas = np.zeros_like(weight) if fresh else weight.copy()
    with one_blas_thread():
        sgemm(-step_size, source.T, delta.T, 1.0, by_blas.T, trans_b=1, overwrite_c=1)
    assert made(weight, source, delta, step_size, fresh).tobytes() == by_blas.tobytes()
