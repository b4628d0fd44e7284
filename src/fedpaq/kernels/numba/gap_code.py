"""The gap code in machine code; twin: ``fedpaq.codec.gap_code``."""

from numba import njit, types

from fedpaq.kernels.numba import kernel
from fedpaq.kernels.numba.adaptive_integers import TABLE_SIZE, get_decision, get_integer, put_decision, put_integer
from fedpaq.kernels.numba.range_coder import BODY, ZERO, ends_well, get_start, put_end, put_start

GAP_WINDOW = 16
MAGNITUDE_WINDOW = 8
SIGNS = 12
GAPS_AT = SIGNS
MAGNITUDES_AT = SIGNS + TABLE_SIZE
LEFT_INTERVAL, BEYOND_DIMENSION, BEYOND_LEVELS, BAD_END = 1, 2, 3, 4


@njit
def mean_gap(positions, t, previous, dimension, left):
    """Return the local mean of the gaps before non-zero t, in eighths."""
    seen = min(t, GAP_WINDOW)
    before = positions[t - 1 - seen] if t > seen else -1
    zeros = previous - before - seen
    remaining = ((dimension - previous - 1 - left) << 4) // (left + 1)
    return ((zeros << 4) + (2 * GAP_WINDOW - seen) * remaining) >> 6


@njit
def sign_context(gap, signs):
    """Return the context of a sign; ``signs`` holds the last sign in bit 1, the one before in bit 0."""
    near = 0 if gap == 0 else (1 if gap < 3 else 2)
    return 4 * near + signs


@njit
def put_nonzeros(positions, values, dimension, levels, guess, initial, reciprocals, out):
    """Encode the non-zeros into ``out`` and return the bytes they take."""
    used = initial.size if levels > 1 else MAGNITUDES_AT
    states = initial[:used].copy()
    low, size, at = put_start()
    previous, signs, window = ZERO - 1, ZERO, MAGNITUDE_WINDOW * guess
    for t in range(positions.size):
        position = int(positions[t])
        value = int(values[t])
        mean = mean_gap(positions, t, previous, dimension, positions.size - t)
        gap = position - previous - 1
        low, size, at = put_integer(low, size, at, out, states, reciprocals, ZERO + GAPS_AT, mean, gap)
        sign = int(value > 0)
        low, size, at = put_decision(low, size, at, out, states, reciprocals, sign_context(gap, signs), sign)
        signs = 2 * sign + (signs >> 1)
        if levels > 1:
            excess = abs(value) - 1
            low, size, at = put_integer(low, size, at, out, states, reciprocals, ZERO + MAGNITUDES_AT, window, excess)
            oldest = guess
            if t >= MAGNITUDE_WINDOW:
                oldest = abs(int(values[t - MAGNITUDE_WINDOW])) - 1
            window += excess - oldest
        previous = position
    return put_end(low, size, at, out)


@kernel(
    "void(int64[::1], int64[::1], int16[::1], int64, int64, int64, int32[::1], int64[::1], uint8[::1], "
    "int64[::1], int64[::1], int64, int64)",
    jobs=lambda ends, positions, *_: (len(ends) - 1, 60 * positions.size),
)
def encode(ends, positions, values, dimension, levels, guess, initial, reciprocals, out, rooms, sizes, first, last):
    """Encode the non-zeros ends[j] : ends[j + 1] of message j into out[rooms[j] : rooms[j + 1]].

    ``sizes`` receives the bytes that each needed.
    """
    for job in range(first, last):
        part = slice(ends[job], ends[job + 1])
        room = out[rooms[job] : rooms[job + 1]]
        sizes[job] = put_nonzeros(positions[part], values[part], dimension, levels, guess, initial, reciprocals, room)


_DECODE = types.int64(BODY, *[types.int64] * 3, types.int32[::1], types.int64[::1], types.int64[::1], types.int16[::1])


@kernel(_DECODE)
def decode(body, dimension, levels, guess, initial, reciprocals, positions, values):
    """Fill positions and values of the non-zeros; return 0, or the kind of fault."""
    used = initial.size if levels > 1 else MAGNITUDES_AT
    states = initial[:used].copy()
    low, size, code, at = get_start(body)
    previous, signs, window = ZERO - 1, ZERO, MAGNITUDE_WINDOW * guess
    for t in range(positions.size):
        mean = mean_gap(positions, t, previous, dimension, positions.size - t)
        low, size, code, at, gap = get_integer(low, size, code, at, body, states, reciprocals, ZERO + GAPS_AT, mean)
        if gap < 0:
            return LEFT_INTERVAL
        position = previous + 1 + gap
        if position > dimension - (positions.size - t):
            return BEYOND_DIMENSION
        low, size, code, at, sign = get_decision(
            low, size, code, at, body, states, reciprocals, sign_context(gap, signs)
        )
        signs = 2 * sign + (signs >> 1)
        excess = 0
        if levels > 1:
            low, size, code, at, excess = get_integer(
                low, size, code, at, body, states, reciprocals, ZERO + MAGNITUDES_AT, window
            )
            if excess < 0:
                return LEFT_INTERVAL
            if excess >= levels:
                return BEYOND_LEVELS
            oldest = guess
            if t >= MAGNITUDE_WINDOW:
                oldest = abs(int(values[t - MAGNITUDE_WINDOW])) - 1
            window += excess - oldest
        positions[t] = position
        values[t] = excess + 1 if sign else -excess - 1
        previous = position
    return 0 if ends_well(low, size, code, at, body) else BAD_END
