"""Accounting: what a message costs by the formulas of the papers, beside what a payload really takes.

    fixed-width   p (1 + ceil(log2(s + 1))) + 32: a sign and a level per coordinate. Our reading of the FedPAQ
                  paper, which says only "the number of bits required to encode"
    elias         (3 + 3/2 log2(2 (s^2 + p) / (s (s + sqrt(p))))) s (s + sqrt(p)) + 32: QSGD's bound for
                  Elias-coded gaps, signs and levels (Alistarh et al. 2017, Theorem 3.2, without its
                  o(1)), made for small s; never more than the fixed-width count

Each bucket has a norm and is counted as a message of its own. Unquantized coordinates take 32 bits.
"""

import math
from collections.abc import Callable

import numpy as np

from fedpaq.arrays import AnyArray
from fedpaq.config import require_int
from fedpaq.errors import unknown_name
from fedpaq.quantizers.message import MAX_LEVELS

FLOAT_BITS = 32  # the paper's F


def message_bits(
    dimension: int, levels: int | None, accounting: str = "fixed-width", *, bucket_size: int | None = None
) -> int:
    """Return |Q(p, s)|, the bits of a message by one of the papers' counts; levels=None: not quantized.

    >>> message_bits(785, 1), message_bits(785, 1, "elias"), message_bits(785, None)
    (1602, 370, 25120)
    """
    require_int("dimension", dimension, 1)
    dimension = int(dimension)  # NumPy's integers overflow, and have no bit_length
    if accounting not in COUNTS:
        raise unknown_name("accounting", accounting, COUNTS)
    if levels is None:
        return FLOAT_BITS * dimension
    require_int("levels", levels, 1, MAX_LEVELS)
    levels, count = int(levels), COUNTS[accounting]
    if bucket_size is None:
        return count(dimension, levels)
    require_int("bucket_size", bucket_size, 1)
    whole, rest = divmod(dimension, int(bucket_size))
    return whole * count(int(bucket_size), levels) + (count(rest, levels) if rest else 0)


def fixed_width_bits(dimension: int, levels: int) -> int:
    """Count a sign and a level of ceil(log2(s + 1)) bits a coordinate, and the norm."""
    return dimension * (1 + levels.bit_length()) + FLOAT_BITS


def elias_bits(dimension: int, levels: int) -> int:
    """Count by QSGD's Theorem 3.2."""
    nonzeros = levels * (levels + math.sqrt(dimension))
    spread = 2 * (levels**2 + dimension) / nonzeros
    bound = math.ceil((3 + 1.5 * math.log2(spread)) * nonzeros) + FLOAT_BITS
    return min(bound, fixed_width_bits(dimension, levels))


def order0_entropy(signed_levels: AnyArray) -> float:
    """Return the order-0 empirical entropy of the levels, in bits: sum of n_v log2(p / n_v) over values v.

    What a code that knew how often each level occurs, and nothing else, could not beat on average.

    >>> order0_entropy(np.array([0, 0, 1, -1]))
    6.0
    """
    if not signed_levels.size:
        return 0.0
    counts = np.bincount(signed_levels.astype(np.int64) - int(signed_levels.min()))
    counts = counts[counts > 0]
    return float((counts * np.log2(signed_levels.size / counts)).sum())


COUNTS: dict[str, Callable[[int, int], int]] = {"fixed-width": fixed_width_bits, "elias": elias_bits}
