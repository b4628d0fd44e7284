"""Plans of many updates in machine code; twin: ``fedpaq.quantizers.rotated.plans``.

Sums here run in another order, and NumPy's asinh is another on every processor, so results differ from the
twin's in their last bits. A row in which a choice is so close that this could change it is flagged, for the
twin to decide; so is one with a block of many bits, whose step must be the twin's to the bit.
"""

import math

import numpy as np
from numba import njit, types

from fedpaq.kernels.numba import kernel

NEAR = 1e-9  # relative; what differs from the twin is below 1e-12
NEAR_HALF = 1e-6  # of a number that is rounded to an integer
LEAST_SUM = 1e-6  # of the rates, in nats, for each block: below, the logarithm of their product loses digits
TOGETHER = 64  # blocks that share a logarithm
LN2 = math.log(2)


@njit(fastmath={"reassoc"}, error_model="numpy")  # in any order, so that blocks are worked on side by side
def growth_and_slope(ratios, v):
    """Return the sum of asinh(x) over x = ratio v, and its slope in v.

    The sum of asinh(x) is the logarithm of the product of x + sqrt(1 + x^2).
    """
    total, slope = 0.0, 0.0
    for start in range(0, ratios.size, TOGETHER):
        some = ratios[start : start + TOGETHER]
        product = 1.0
        for block in range(some.size):
            x = some[block] * v
            root = math.sqrt(1 + x * x)
            product *= x + root
            slope += some[block] / root
        total += math.log(product) if product < math.inf else asinh_sum(some, v)
    return total, slope


@njit
def asinh_sum(ratios, v):
    """Return the same sum one by one: no product overflows."""
    total = 0.0
    for block in range(ratios.size):
        total += math.asinh(ratios[block] * v)
    return total


@njit(error_model="numpy")
def newton(ratios, target, tolerance, v, step, steps):
    """Take Newton steps; return v, the steps taken, and whether stopping was a close call."""
    close = False
    while step < steps:
        total, slope = growth_and_slope(ratios, v)
        missing = target - total
        beyond = abs(missing) - tolerance * target
        close |= abs(beyond) < NEAR * target
        if beyond < 0:
            break
        v += missing / slope
        step += 1
    return v, step, close


@njit
def ratios_of(energies):
    """Return the root mean squares in units of the largest."""
    largest = 0.0
    for energy in energies:
        largest = max(largest, energy)
    ratios = np.empty(energies.size)
    for block in range(energies.size):
        ratios[block] = math.sqrt(energies[block] / largest) if largest > 0 else math.nan
    return ratios


@njit(fastmath={"reassoc"})
def error_of(energies, ratios, v):
    """Return the sum of E / (4^R - 1) over blocks that get any bits."""
    found = 0.0
    for block in range(energies.size):
        x = ratios[block] * v
        if x > 0:
            found += energies[block] / (2 * x * (x + math.sqrt(1 + x * x)))
    return found


@njit
def interval(known, x):
    """Return i with known[i] <= x < known[i + 1], as far as there is one."""
    low, high = 0, known.size - 1
    while high - low > 1:
        middle = (low + high) // 2
        if known[middle] <= x:
            low = middle
        else:
            high = middle
    return low


@njit
def round_row(energies, ratios, v, size, growth, guess, sparse_rate, curve, factors, wanted, least):
    """Fill how one update's blocks are rounded; return whether the twin must do it."""
    close = False
    for block in range(energies.size):
        energy = energies[block]
        exponent = min(max(-math.frexp(math.sqrt(energy))[1], -126), 126)
        factors[block] = math.ldexp(1.0, exponent)
        rate = math.asinh(ratios[block] * v) / LN2
        close |= not rate < sparse_rate * (1 - NEAR)
        at = interval(curve[0], rate)
        part = max((rate - curve[0, at]) / (curve[0, at + 1] - curve[0, at]), 0.0)
        half = curve[1, at] + part * (curve[1, at + 1] - curve[1, at])
        share = size * (curve[2, at] + part * (curve[2, at + 1] - curve[2, at]))
        close |= abs(share - math.floor(share) - 0.5) < NEAR_HALF
        wanted[block] = min(max(np.rint(share), 1.0), size) if energy > 0 else 0
        least[block] = guess * half * math.sqrt(energy / size) * growth * factors[block]
    return close


_INTEGERS, _FLOATS = types.int64[::1], types.float64[::1]


@kernel(
    types.void(
        types.float64[:, ::1], _FLOATS, _INTEGERS, _INTEGERS, _INTEGERS, _FLOATS, _FLOATS, _FLOATS,
        types.float64[:, ::1], types.Tuple([types.float64] * 5), types.int64,
        _INTEGERS, _FLOATS, _FLOATS, types.float32[:, ::1], types.int32[:, ::1], types.float32[:, ::1],
        types.boolean[::1], types.int64, types.int64,
    ),
    jobs=lambda energies, totals, *_: (len(totals), 50 * energies.size),
)  # fmt: skip
def plan(
    energies, totals, firsts, counts, sizes, bits, kept, growths, curve, settings, steps,
    best, errors, mantissas, factors, wanted, least, close, first, last,
):  # fmt: skip
    """Plan each row: the blocks of cut c have the energies [firsts[c], firsts[c] + counts[c]).

    ``settings`` are the tolerance of an error, that of rates, the excess, the guess and the sparse rate;
    ``mantissas`` are the mantissa bits before they are rounded.
    """
    coarse, fine, excess, guess, sparse_rate = settings
    for row in range(first, last):
        unsure, chosen, chosen_v, chosen_step = False, 0, 0.0, 0
        least_error, second = math.inf, math.inf
        for cut in range(len(counts)):
            here = energies[row, firsts[cut] : firsts[cut] + counts[cut]]
            target = bits[cut] * LN2 / sizes[cut]
            ratios = ratios_of(here)
            v, step, stopped = newton(ratios, target, coarse, 0.0, 0, steps)
            error = excess * error_of(here, ratios, v) / totals[row] * kept[cut]
            unsure |= stopped or not target > LEAST_SUM * counts[cut] or not math.isfinite(error)
            if error < least_error:
                least_error, second = error, least_error
                chosen, chosen_v, chosen_step = cut, v, step
            else:
                second = min(second, error)
        unsure |= not second > least_error * (1 + NEAR)
        best[row], errors[row] = chosen, least_error
        count, size = counts[chosen], sizes[chosen]
        here = energies[row, firsts[chosen] : firsts[chosen] + count]
        ratios, target = ratios_of(here), bits[chosen] * LN2 / size
        v, _, stopped = newton(ratios, target, fine, chosen_v, chosen_step, steps)
        factor = 0.125 * (1.0 + least_error) / max(least_error, 1e-9)
        mantissas[row] = 0.5 * math.log2(factor * max(bits[chosen] / count, 1.0))
        unsure |= abs(mantissas[row] - math.floor(mantissas[row]) - 0.5) < NEAR_HALF
        dense = round_row(
            here, ratios, v, size, growths[chosen], guess, sparse_rate, curve,
            factors[row], wanted[row], least[row],
        )  # fmt: skip
        close[row] = unsure or stopped or dense
