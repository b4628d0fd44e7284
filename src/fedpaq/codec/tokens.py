"""Tokens: the small alphabet that stands for signed levels in the block code.

A magnitude below 16 is its own class; above, four classes an octave, the bits below them sent raw.
Token 0 is level 0; class c is token 2c - 1 when positive and 2c when negative: 119 tokens reach 32767.
"""

import functools

import numpy as np

from fedpaq.arrays import Int16, UInt8

DIRECT = 16  # magnitudes below this are classes of their own
NUM_TOKENS = 119


def token_of(level: int) -> int:
    """Return the token of a signed level.

    >>> token_of(0), token_of(1), token_of(-1), token_of(16), token_of(-32767)
    (0, 1, 2, 31, 118)
    """
    magnitude = abs(level)
    if magnitude >= DIRECT:
        shift = magnitude.bit_length() - 3
        magnitude = DIRECT + 4 * (shift - 2) + (magnitude >> shift) - 4
    return 2 * magnitude - (level > 0)


def extra_bits(token: int) -> int:
    """Return how many raw bits follow a token."""
    magnitude = (token + 1) // 2
    return 0 if magnitude < DIRECT else (magnitude - DIRECT) // 4 + 2


def base_level(token: int) -> int:
    """Return the signed level of a token whose raw bits are zero."""
    magnitude = (token + 1) // 2
    if magnitude >= DIRECT:
        magnitude = (magnitude % 4 + 4) << extra_bits(token)
    return magnitude if token % 2 else -magnitude


@functools.cache
def token_table() -> UInt8:
    """Return the token of each level, indexed by level mod 65536."""
    table = np.zeros(65536, np.uint8)
    for token in range(1, NUM_TOKENS):
        first = base_level(token)
        run = np.arange(1 << extra_bits(token))
        table[(first + (run if first > 0 else -run)) % 65536] = token
    return table


@functools.cache
def base_table() -> Int16:
    """Return the base level of each token, padded to 128."""
    return np.array([base_level(min(token, NUM_TOKENS - 1)) for token in range(128)], np.int16)
