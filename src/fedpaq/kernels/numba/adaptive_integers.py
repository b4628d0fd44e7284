"""The adaptive integer model in machine code; twin: ``fedpaq.codec.adaptive_integers``."""

from numba import njit

from fedpaq.kernels.numba.range_coder import UNIT, ZERO, get_bit, get_raw, put_bit, put_raw

LAST_OCTAVE = 5  # ROWS // 4 - 2
STEPS = 10
NODES = 8
ROW_SIZE = STEPS * NODES
TABLE_SIZE = 28 * ROW_SIZE  # ROWS
MAX_EXPONENT = 41
ONE = 32
COUNT_BITS = 11
COUNT_MASK = 2047
MAX_COUNT = 1024
LEAST_PROBABILITY = 16


@njit(forceinline=True)
def locate(mean):
    """Return (order, row) of a local mean in eighths."""
    order, phase = 0, mean
    if mean < 4:
        return order, mean
    while phase >= 8:
        phase >>= 1
        order += 1
    return order, 4 * min(order, LAST_OCTAVE) + phase


@njit(forceinline=True)
def probability_of(state, reciprocals):
    """Return P(one) of a context, of 65536."""
    probability = ((state >> COUNT_BITS) * reciprocals[state & COUNT_MASK]) >> 15
    return min(max(probability, LEAST_PROBABILITY), 65536 - LEAST_PROBABILITY)


@njit(forceinline=True)
def learn(state, bit):
    """Return the state after one more decision."""
    state += (ONE << COUNT_BITS) * bit + 1
    if state & COUNT_MASK == MAX_COUNT:
        state = (state >> (COUNT_BITS + 1)) << COUNT_BITS | MAX_COUNT >> 1
    return state


@njit(forceinline=True)
def put_decision(low, size, at, out, states, reciprocals, context, bit):
    """Append one decision and learn from it."""
    state = int(states[context])
    low, size, at = put_bit(low, size, at, out, probability_of(state, reciprocals), bit)
    states[context] = learn(state, bit)
    return low, size, at


@njit(forceinline=True)
def put_integer(low, size, at, out, states, reciprocals, base, mean, value):
    """Append one integer, its contexts at states[base:]."""
    exponent, row = locate(mean)
    context = base + row * ROW_SIZE
    step = 0
    while value >> exponent > 0:
        low, size, at = put_decision(low, size, at, out, states, reciprocals, context, UNIT)
        value -= 1 << exponent
        exponent += 1
        step += 1
        if step < STEPS:
            context += NODES
    low, size, at = put_decision(low, size, at, out, states, reciprocals, context, ZERO)
    node = 1
    modelled = min(exponent, 3)
    for depth in range(modelled):
        bit = value >> (exponent - 1 - depth) & 1
        low, size, at = put_decision(low, size, at, out, states, reciprocals, context + node, bit)
        node = 2 * node + bit
    return put_raw(low, size, at, out, exponent - modelled, value)


@njit(forceinline=True)
def get_decision(low, size, code, at, body, states, reciprocals, context):
    """Return the state and the next decision, and learn from it."""
    state = int(states[context])
    low, size, code, at, bit = get_bit(low, size, code, at, body, probability_of(state, reciprocals))
    states[context] = learn(state, bit)
    return low, size, code, at, bit


@njit(forceinline=True)
def get_integer(low, size, code, at, body, states, reciprocals, base, mean):
    """Return the state and the next integer; -1 where no encoder can have been."""
    exponent, row = locate(mean)
    context = base + row * ROW_SIZE
    start, step = 0, 0
    while True:
        low, size, code, at, bit = get_decision(low, size, code, at, body, states, reciprocals, context)
        if bit == 0:
            break
        start += 1 << exponent
        exponent += 1
        if exponent > MAX_EXPONENT:
            return low, size, code, at, -1
        step += 1
        if step < STEPS:
            context += NODES
    node = 1
    modelled = min(exponent, 3)
    for _ in range(modelled):
        low, size, code, at, bit = get_decision(low, size, code, at, body, states, reciprocals, context + node)
        node = 2 * node + bit
    rest = exponent - modelled
    low, size, code, at, offset = get_raw(low, size, code, at, body, rest)
    if offset < 0:
        return low, size, code, at, -1
    return low, size, code, at, start + ((node - (1 << modelled)) << rest | offset)
