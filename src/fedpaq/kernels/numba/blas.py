"""BLAS: the matrix product of SciPy's library, called from machine code."""

import llvmlite.binding
import numpy as np
from numba import njit, types
from numba.extending import get_cython_function_address

# A named symbol, not a raw pointer: machine code that calls it can be cached on disk.
llvmlite.binding.add_symbol("fedpaq_sgemm", get_cython_function_address("scipy.linalg.cython_blas", "sgemm"))
_sgemm = types.ExternalFunction("fedpaq_sgemm", types.void(*[types.uintp] * 13))

NN, NT, TN = (np.frombuffer(text, np.uint8) for text in (b"NN", b"NT", b"TN"))  # whether A and B are transposed


@njit
def copy(source, target):
    """Copy; an assignment to a slice would have numba compile its check of shapes, for two seconds."""
    for i in range(target.size):
        target[i] = source[i]


@njit
def clear(target):
    """Fill with zeros; like the two beside it from 0 on, or numba checks every index and vectorises nothing."""
    for i in range(target.size):
        target[i] = 0


@njit
def subtract(source, target):
    """target <- target - source."""
    for i in range(target.size):
        target[i] -= source[i]


@njit
def gemm(letters, sizes, alpha, a, lead_a, b, lead_b, beta, c, lead_c, scratch):
    """C <- alpha op(A) op(B) + beta C in BLAS's column-major terms; sizes = (m, n, k).

    BLAS takes addresses: ``scratch`` is where the numbers stand, ``letters`` the ops of A and B.
    """
    integers, numbers = scratch
    integers[0], integers[1], integers[2] = sizes
    integers[3], integers[4], integers[5] = lead_a, lead_b, lead_c
    numbers[0], numbers[1] = alpha, beta
    text, whole, real = letters.ctypes.data, integers.ctypes.data, numbers.ctypes.data
    _sgemm(
        text, text + 1, whole, whole + 4, whole + 8, real,
        a.ctypes.data, whole + 12, b.ctypes.data, whole + 16, real + 4, c.ctypes.data, whole + 20,
    )  # fmt: skip
