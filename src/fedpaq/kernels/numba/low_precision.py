"""The low-precision quantizer in machine code; twin: ``fedpaq.quantizers.low_precision``."""

from typing import Any

import numpy as np
from numba import njit, types, uint64

from fedpaq.kernels.numba import kernel
from fedpaq.kernels.numba.masks import LAST, NONE, WIDTH, count_bits, lowest_bit, not_zero
from fedpaq.kernels.numba.philox import GROUP, fill_group, word

DITHER, DITHER_LOW = 3, 10  # Purpose
CHUNK = 65_536
PIECE = 4096  # coordinates of the total that stay in the cache while messages are added
LANES = 256
HALVES = 2 * GROUP  # draws of 16 bits per group
RUN = 4 * HALVES  # coordinates rounded at a time: their draws stay in the cache
ONE = 2.0**16  # a level, in the units of a draw of 16 bits
CLOSE = 0xFFFF  # this far above a level, the low half of a draw decides whether it is the next


@njit
def halve(lanes):
    """Return the sum of the lanes, added in halves."""
    half = LANES // 2
    while half > 0:
        for lane in range(half):
            lanes[lane] += lanes[lane + half]
        half //= 2
    return lanes[0]


@njit(fastmath={"contract"})
def add_squares(chunk, lanes):
    """Add chunk^2 onto the lanes, 256 coordinates at a time, then halve the lanes to one sum.

    Product and sum may be fused into one rounding: the square of a float32 is exact anyway.
    """
    whole = chunk.size // LANES
    for step in range(whole):
        part = chunk[step * LANES : step * LANES + LANES]
        for lane in range(LANES):
            value = np.float64(part[lane])
            lanes[lane] += value * value
    rest = chunk[whole * LANES :]
    for lane in range(rest.size):
        value = np.float64(rest[lane])
        lanes[lane] += value * value
    return halve(lanes)


@njit
def sum_of_squares(vector, lanes):
    """Sum the squares in the pinned order, using ``lanes`` (256,) as scratch."""
    total = 0.0
    for start in range(0, vector.size, CHUNK):
        lanes[:] = 0.0
        total += add_squares(vector[start : start + CHUNK], lanes)
    return total


@njit
def round_all(values, scale, halves, out):
    """Write floor((|x| * scale + u) / 2^16) with the sign of x, taking only the high halves of the draws.

    Tells whether one of them lies so close to the next level that the low half must decide.
    """
    unsettled = np.int32(0)
    for i in range(values.size):
        reached = np.int32(abs(np.float64(values[i])) * scale + np.float64(halves[i]))
        unsettled |= np.int32(reached & CLOSE == CLOSE)
        level = reached >> 16
        out[i] = -level if values[i] < 0 else level
    return unsettled != 0


@njit(fastmath={"contract"})
def flag(values, scale, halves, flags):
    """Mark the coordinates that may have a level, |x| * scale + u >= 2^16, in single precision.

    The low half of u adds less than one, so the limit is 2^16 - 1; it is taken a 1e-5th too low, and ``scale``
    as much too large, far beyond what rounding can lose.
    """
    wide = np.float32(scale * (1.0 + 1e-5))
    limit = np.float32((ONE - 1.0) * (1.0 - 1e-5))
    for i in range(values.size):
        flags[i] = abs(values[i]) * wide + np.float32(halves[i]) >= limit


@njit
def choose(flags, size, chosen):
    """Write which of the first ``size`` flags are set and return how many; ``chosen`` has a place to spare.

    One is always stored, and kept only if the count moves: a branch would be mispredicted too often.
    """
    stop = (size + WIDTH - 1) // WIDTH * WIDTH
    flags[size:stop] = 0
    count = 0
    for start in range(0, stop, WIDTH):
        mask = not_zero(flags, start)
        more = count_bits(mask)
        chosen[uint64(count)] = start + lowest_bit(mask | LAST)
        if more > 1:
            for n in range(count, count + more):
                chosen[uint64(n)] = start + lowest_bit(mask)
                mask &= mask - uint64(1)
        count += more
    return count


@njit
def round_few(values, first, scale, halves, flags, chosen, out, places, found):
    """Do what ``round_all`` does where levels are rare: most coordinates cost one estimate.

    The others are added to ``places`` as long as there is room; returns how many those are by now, too.
    """
    flag(values, scale, halves, flags)
    out[:] = 0
    unsettled = np.int32(0)
    for n in range(choose(flags, values.size, chosen)):
        i = uint64(chosen[uint64(n)])  # an index that may be negative would cost a test
        reached = np.int32(abs(np.float64(values[i])) * scale + np.float64(halves[i]))
        unsettled |= np.int32(reached & CLOSE == CLOSE)
        level = reached >> 16
        out[i] = -level if values[i] < 0 else level
        if found < places.size:
            places[uint64(found)] = first + i
        found += 1
    return unsettled != 0, found


@njit
def settle(values, first, scale, halves, seed, round, client, out):
    """Write the levels that the low half of a draw decides, one in 65,536, from coordinate ``first`` on."""
    for i in range(values.size):
        size = abs(np.float64(values[i])) * scale
        if np.int32(size + np.float64(halves[i])) & CLOSE == CLOSE:
            at = first + i
            low = word(DITHER_LOW, seed, round, client, at // 2) >> (16 * (at % 2)) & 0xFFFF
            level = np.int32(size + (halves[i] + low / ONE)) >> 16
            out[i] = -level if values[i] < 0 else level


@njit
def fill_run(run, size, seed, round, client, words):
    """Make the draws of one run of coordinates, of which there are ``size`` in all."""
    first = run * (RUN // HALVES)
    for group in range(first, min(first + RUN // HALVES, (size + HALVES - 1) // HALVES)):
        at = (group - first) * GROUP
        fill_group(group, DITHER, seed, round, client, words[at : at + GROUP])


@njit
def keep_nonzeros(out, found, places, values):
    """Keep the places that have a level and write it beside them; return their number, -1 if any is missing."""
    if found > places.size:
        return -1
    kept = 0
    for n in range(found):
        level = out[places[n]]
        places[kept] = places[n]
        values[kept] = level
        kept += level != 0
    return kept


@njit
def quantize_row(row, seed, round, client, levels, width, norms, out, places, values):
    """Fill norms (buckets,) and signed levels (p,) of one update, and its non-zeros; return their number.

    It is -1 where they were not all noted: where levels are not rare, or more than there is room for.
    """
    lanes = np.empty(LANES, np.float64)
    flags, chosen = np.empty(RUN, np.uint8), np.empty(RUN + 1, np.uint16)
    words = np.empty(RUN // 2, np.uint32)
    halves = words.view(np.uint16)
    loaded = -1  # the run whose draws are now in ``words``
    found = np.int64(0)  # a literal would have ``round_few`` compiled twice
    for bucket in range(norms.size):
        start = bucket * width
        stop = min(start + width, row.size)
        norm = np.float32(np.sqrt(sum_of_squares(row[start:stop], lanes)))
        norms[bucket] = norm
        if not (norm > 0 and norm < np.inf):
            out[start:stop] = 0
            continue
        scale = np.float64(levels) / np.float64(norm) * ONE  # no level exceeds s, since the norm is the largest
        rare = 1024 * levels * levels < stop - start  # as fedpaq.quantizers.low_precision.rare
        for run in range(start // RUN, (stop + RUN - 1) // RUN):
            if run != loaded:
                fill_run(run, row.size, seed, round, client, words)
                loaded = run
            first, last = max(run * RUN, start), min(run * RUN + RUN, stop)
            part, signed = row[first:last], out[first:last]
            draws = halves[first - run * RUN : last - run * RUN]
            if rare:
                unsettled, found = round_few(part, first, scale, draws, flags, chosen, signed, places, found)
            else:
                unsettled = round_all(part, scale, draws, signed)
                found = places.size + 1
            if unsettled:
                settle(part, first, scale, draws, seed, round, client, signed)
    return keep_nonzeros(out, found, places, values)


_KINDS: dict[str, Any] = {"b": types.int8, "h": types.int16}
_ROWS = types.Array(types.float32, 2, "C", readonly=True)
_KEYS = (types.uint64[::1], types.int64[::1], types.int64[::1])
_SIGNATURES = {
    char: types.void(
        _ROWS, *_KEYS, types.int64, types.int64, types.float32[:, ::1], kind[:, ::1],
        types.int64[:, ::1], types.int16[:, ::1], types.int64[::1], types.int64, types.int64,
    )
    for char, kind in _KINDS.items()
}  # fmt: skip


@kernel(_SIGNATURES, by=7, jobs=lambda rows, *_: (len(rows), rows.size))
def quantize(rows, seeds, rounds, clients, levels, width, norms, out, positions, values, counts, first, last):
    """Quantize r updates (r, p); see ``quantize_row`` for what is filled."""
    for job in range(first, last):
        counts[job] = quantize_row(
            rows[job], seeds[job], rounds[job], clients[job], levels, width,
            norms[job], out[job], positions[job], values[job],
        )  # fmt: skip


_ADD_SIGNATURES = {
    char: types.void(
        types.Array(kind, 2, "C", readonly=True),
        types.float64[:, ::1], types.int64, types.int64[::1], types.float64[:, ::1], types.int64, types.int64,
    )
    for char, kind in _KINDS.items()
}  # fmt: skip


@njit
def add_row(signed, unit, total):
    """Add unit * signed onto total, touching only non-zeros."""
    whole = signed.size // WIDTH * WIDTH
    for start in range(0, whole, WIDTH):
        mask = not_zero(signed, start)
        while mask != NONE:
            at = start + lowest_bit(mask)
            total[at] += signed[at] * unit
            mask &= mask - uint64(1)
    for at in range(whole, signed.size):
        if signed[at] != 0:
            total[at] += signed[at] * unit


@kernel(_ADD_SIGNATURES, by=0, jobs=lambda signed, *_: (signed.shape[1], signed.size))
def add_levels(signed, units, width, run_of, total, first, last):
    """Add each job's message to its run's total, in job order; twin: ``QuantizedMessage.add_to``.

    Coordinates are split among threads, so the order of additions never changes.
    """
    for low in range(first, last, PIECE):
        high = min(low + PIECE, last)
        for job in range(signed.shape[0]):
            for bucket in range(low // width, (high + width - 1) // width):
                start = max(bucket * width, low)
                stop = min((bucket + 1) * width, high)
                add_row(signed[job, start:stop], units[job, bucket], total[run_of[job], start:stop])
