"""Adaptive integers: the model that turns non-negative integers into cheap binary decisions.

An integer n is coded knowing a local mean m of the integers before it. With k = floor(log2(2 m)) the
line is cut into steps of width 2^k, 2^(k+1), 2^(k+2), ...; one decision per step says whether n lies
beyond it, then the offset inside the last step follows, its top three bits as decisions, the rest raw.
Geometric gaps need about two decisions and lose nothing; a heavy tail costs a logarithm.

Each decision has a context (the mean to a quarter octave, the step, the node of the offset) with a state
of two numbers: ``ones``, 32 per one seen, and ``count``, decisions seen. P(one) = ones / (32 count). At
1024 both are halved, so old statistics fade. States start from the geometric law of mean m, worth
four to sixteen decisions: small messages cannot pay for learning. All of it is integer arithmetic.

Twin: ``fedpaq.kernels.numba.adaptive_integers``.
"""

import functools
from typing import Any

import numpy as np

from fedpaq.arrays import Int32
from fedpaq.codec.range_coder import RangeDecoder, RangeEncoder
from fedpaq.errors import WireFormatError

States = Int32
Coder = RangeEncoder | RangeDecoder  # told each value, or telling it

ROWS = 28  # local means: four below 1/2, then four an octave; beyond 16 the octaves share rows by phase
STEPS = 10  # further steps share contexts with the tenth
NODES = 8  # node 0: beyond this step? nodes 1..7: the top three bits of the offset
ROW_SIZE = STEPS * NODES
TABLE_SIZE = ROWS * ROW_SIZE
MAX_EXPONENT = 41  # a step of 2^41 holds every position: dimensions stay below 2^40
ONE = 32  # what one decision adds to ``ones``
COUNT_BITS = 11  # state = ones << 11 | count
MAX_COUNT = 1024
LEAST_PROBABILITY = 16  # of 65536: no decision costs more than 12 bits
RECIPROCALS = np.array([0, *((1 << 31) // (ONE * count) for count in range(1, MAX_COUNT))], np.int64)


def pack_state(ones: int, count: int) -> int:
    """Return the state of a context."""
    return ones << COUNT_BITS | count


def row_mean(row: int) -> tuple[int, int]:
    """Return the middle of the means that share a row, as a fraction."""
    if row < 4:
        return 2 * row + 1, 16
    octave, phase = divmod(row - 4, 4)
    return (2 * phase + 9) << octave, 16


def power(base: int, exponent: int) -> int:
    """Return base^(2^exponent) for a base in units of 2^-32, by repeated squaring."""
    for _ in range(exponent):
        base = base * base >> 32
    return base


@functools.cache
def prior_table(weight: int) -> States:
    """Return the states (TABLE_SIZE,) of geometric integers, worth ``weight`` decisions."""
    table = np.zeros((ROWS, STEPS, NODES), np.int32)
    for row in range(ROWS):
        numerator, denominator = row_mean(row)
        ratio = (numerator << 32) // (numerator + denominator)  # P(n + 1) / P(n)
        order = max(0, row - 4) // 4
        for step in range(STEPS):
            for node in range(NODES):
                likely = _prior_probability(ratio, order + step, node)
                ones = min(max(ONE * weight * likely >> 32, 5 * weight // 8), ONE * weight - 5 * weight // 8)
                table[row, step, node] = pack_state(ones, weight)
    return table.reshape(-1)


def _prior_probability(ratio: int, exponent: int, node: int) -> int:
    """P(one) in units of 2^-32 at a node of a step 2^exponent wide."""
    if node == 0:
        return power(ratio, exponent)
    half = exponent - node.bit_length()
    if half < 0:
        return 1 << 31
    odds = power(ratio, half)
    return (odds << 32) // ((1 << 32) + odds)


def locate(mean: int) -> tuple[int, int]:
    """Return (order k, row) of a local mean given in eighths.

    >>> locate(0), locate(4), locate(8 * 1000)
    ((0, 0), (0, 4), (10, 27))
    """
    if mean < 4:
        return 0, mean
    order = mean.bit_length() - 3
    phase = (mean >> order) - 4
    return order, 4 + 4 * min(order, ROWS // 4 - 2) + phase


def code_bit(coder: Coder, states: Any, context: int, bit: int | None) -> int:
    """Pass one decision through the coder and learn from it."""
    ones, count = states[context] >> COUNT_BITS, states[context] & ((1 << COUNT_BITS) - 1)
    probability = ones * int(RECIPROCALS[count]) >> 15
    probability = min(max(probability, LEAST_PROBABILITY), 65536 - LEAST_PROBABILITY)
    bit = coder.code(probability, bit)
    ones, count = ones + ONE * bit, count + 1
    if count == MAX_COUNT:
        ones, count = ones >> 1, count >> 1
    states[context] = pack_state(ones, count)
    return bit


def code_integer(coder: Coder, states: Any, base: int, mean: int, value: int | None) -> int:
    """Pass one integer, its contexts at states[base:], given the local mean in eighths."""
    exponent, row = locate(mean)
    context = base + row * ROW_SIZE
    start, step = 0, 0
    while code_bit(coder, states, context, None if value is None else int(value - start >> exponent > 0)):
        start += 1 << exponent
        exponent += 1
        if exponent > MAX_EXPONENT:
            raise WireFormatError("the body holds an integer beyond 2^40; the payload is corrupt")
        step += 1
        if step < STEPS:
            context += NODES
    offset = _code_offset(coder, states, context, exponent, None if value is None else value - start)
    return start + offset


def _code_offset(coder: Coder, states: Any, context: int, exponent: int, offset: int | None) -> int:
    node = 1
    modelled = min(exponent, 3)
    for depth in range(modelled):
        bit = None if offset is None else offset >> (exponent - 1 - depth) & 1
        node = 2 * node + code_bit(coder, states, context + node, bit)
    rest = exponent - modelled
    low = coder.raw(rest, None if offset is None else offset & ((1 << rest) - 1))
    return (node - (1 << modelled)) << rest | low
