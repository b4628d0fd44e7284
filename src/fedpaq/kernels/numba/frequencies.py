"""The block code's side stream in machine code; twin: ``fedpaq.codec.frequencies``."""

import numpy as np
from numba import types

from fedpaq.kernels.numba import kernel
from fedpaq.kernels.numba.adaptive_integers import TABLE_SIZE, get_integer, put_integer
from fedpaq.kernels.numba.range_coder import BODY, ZERO, ends_well, get_start, put_end, put_start

CLASSES = 24
CONTEXTS = 3
TOTAL = 4096
LEFT_INTERVAL, BAD_CLASS, BAD_END, BAD_FREQUENCY = 1, 2, 3, 4


@kernel("int64(uint8[::1], int64[:, ::1], int64, int32[::1], int64[::1], uint8[::1])")
def encode_side(classes, frequencies, tokens, initial, reciprocals, out):
    """Encode classes (blocks,) and frequencies (tables, STRIDE); return the bytes."""
    states = initial.copy()
    low, size, at = put_start()
    seen = np.zeros(CLASSES, np.uint8)
    w0 = w1 = w2 = w3 = ZERO
    before = 0
    for block in range(classes.size):
        value = int(classes[block])
        seen[value] = 1
        step = value - before
        code = 2 * step if step >= 0 else -2 * step - 1
        mean = 2 * (w0 + w1 + w2 + w3)
        low, size, at = put_integer(low, size, at, out, states, reciprocals, ZERO, mean, code)
        w0, w1, w2, w3, before = w1, w2, w3, code, value
    w0 = w1 = w2 = w3 = ZERO
    for table in range(CLASSES * CONTEXTS):
        if seen[table // CONTEXTS]:
            for token in range(tokens):
                code = frequencies[table, token]
                mean = 2 * (w0 + w1 + w2 + w3)
                low, size, at = put_integer(low, size, at, out, states, reciprocals, ZERO + TABLE_SIZE, mean, code)
                w0, w1, w2, w3 = w1, w2, w3, code
    return put_end(low, size, at, out)


@kernel(types.int64(BODY, types.uint8[::1], types.int64[:, ::1], types.int64, types.int32[::1], types.int64[::1]))
def decode_side(body, classes, frequencies, tokens, initial, reciprocals):
    """Fill classes and frequencies (zeros before); return 0, or the kind of fault."""
    states = initial.copy()
    low, size, code, at = get_start(body)
    seen = np.zeros(CLASSES, np.uint8)
    w0 = w1 = w2 = w3 = ZERO
    before = 0
    for block in range(classes.size):
        mean = 2 * (w0 + w1 + w2 + w3)
        low, size, code, at, step = get_integer(low, size, code, at, body, states, reciprocals, ZERO, mean)
        if step < 0:
            return LEFT_INTERVAL
        before += step >> 1 if step & 1 == 0 else -((step + 1) >> 1)
        if before < 0 or before >= CLASSES:
            return BAD_CLASS
        classes[block] = before
        seen[before] = 1
        w0, w1, w2, w3 = w1, w2, w3, step
    w0 = w1 = w2 = w3 = ZERO
    for table in range(CLASSES * CONTEXTS):
        if seen[table // CONTEXTS]:
            for token in range(tokens):
                mean = 2 * (w0 + w1 + w2 + w3)
                low, size, code, at, step = get_integer(
                    low, size, code, at, body, states, reciprocals, ZERO + TABLE_SIZE, mean
                )
                if step < 0:
                    return LEFT_INTERVAL
                if step > TOTAL:
                    return BAD_FREQUENCY
                frequencies[table, token] = step
                w0, w1, w2, w3 = w1, w2, w3, step
    return 0 if ends_well(low, size, code, at, body) else BAD_END
