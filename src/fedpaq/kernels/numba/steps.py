"""The rotated code's side stream in machine code; twin: ``fedpaq.quantizers.rotated.steps``."""

from numba import types

from fedpaq.kernels.numba import kernel
from fedpaq.kernels.numba.adaptive_integers import get_integer, put_integer
from fedpaq.kernels.numba.range_coder import BODY, ZERO, ends_well, get_start, put_end, put_start

LEFT_INTERVAL, BEYOND_RANGE, BAD_END = 1, 2, 3


@kernel("int64(int64[::1], int32[::1], int64[::1], uint8[::1])")
def encode(indices, initial, reciprocals, out):
    """Encode the differences of ``indices`` into ``out``; return the bytes they take."""
    states = initial.copy()
    low, size, at = put_start()
    w0 = w1 = w2 = w3 = ZERO
    for block in range(1, indices.size):
        step = indices[block] - indices[block - 1]
        code = 2 * step if step >= 0 else -2 * step - 1
        mean = 2 * (w0 + w1 + w2 + w3)
        low, size, at = put_integer(low, size, at, out, states, reciprocals, ZERO, mean, code)
        w0, w1, w2, w3 = w1, w2, w3, code
    return put_end(low, size, at, out)


@kernel(types.int64(BODY, types.int64, types.int32[::1], types.int64[::1], types.int64[::1]))
def decode(body, most, initial, reciprocals, indices):
    """Fill ``indices`` from its second entry on; return 0, or the kind of fault."""
    states = initial.copy()
    low, size, code, at = get_start(body)
    w0 = w1 = w2 = w3 = ZERO
    index = indices[0]
    for block in range(1, indices.size):
        mean = 2 * (w0 + w1 + w2 + w3)
        low, size, code, at, step = get_integer(low, size, code, at, body, states, reciprocals, ZERO, mean)
        if step < 0:
            return LEFT_INTERVAL
        index += step >> 1 if step & 1 == 0 else -((step + 1) >> 1)
        if index < 1 or index > most:
            return BEYOND_RANGE
        indices[block] = index
        w0, w1, w2, w3 = w1, w2, w3, step
    return 0 if ends_well(low, size, code, at, body) else BAD_END
