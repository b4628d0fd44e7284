"""The low-precision quantizer in machine code; twin: ``fedpaq.quantizers.low_precision``."""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from fedpaq.compiled.nonzeros import aligned_words, any_of_eight
from fedpaq.compiled.philox import GROUP, fill_group

DITHER = 3  # Purpose.DITHER
CHUNK = 65_536
LANES = 256
SPAN = np.uint64(32)


@njit
def add_squares(chunk, lanes):
    """Add chunk^2 onto the lanes, 256 coordinates at a time, then halve the lanes to one sum."""
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
    half = LANES // 2
    while half > 0:
        for lane in range(half):
            lanes[lane] += lanes[lane + half]
        half //= 2
    return lanes[0]


@njit
def sum_of_squares(vector, lanes):
    """Sum the squares in the pinned order, using ``lanes`` (256,) as scratch."""
    total = 0.0
    for start in range(0, vector.size, CHUNK):
        lanes[:] = 0.0
        total += add_squares(vector[start : start + CHUNK], lanes)
    return total


# Indices are unsigned below: numba wraps negative ones around, a test in every step that keeps the
# compiler from working on many coordinates at once.


@njit(inline="always")
def round_to_levels(row, start, count, scale, levels, dither, at, out):
    """Write floor(|x| * scale + u) with the sign of x for coordinates start.. and draws at.. of a group."""
    for i in range(count):
        value = row[start + i]
        level = np.int32(abs(np.float64(value)) * scale + np.float64(dither[at + i]) * 2.0**-32)
        level = min(level, levels)
        out[start + i] = -level if value < 0 else level


@njit(inline="always")
def may_round_up(row, start, scale, dither, at):
    """Tell whether any of SPAN coordinates may have a level: |x| * scale + u >= 1, in single precision.

    ``scale`` is a 1e-5th too large and the limit as much too low, far beyond what rounding can lose.
    """
    some = np.int32(0)
    for i in range(SPAN):
        reached = abs(row[start + i]) * scale + np.float32(dither[at + i]) * np.float32(2.0**-32)
        some |= np.int32(reached >= np.float32(1.0 - 1e-5))
    return some != 0


@njit
def round_group(row, start, stop, scale, levels, sparse, dither, at, out):
    """Round coordinates start..stop of one group; where levels are rare, spans without any cost little."""
    if sparse:
        wide = np.float32(scale * (1.0 + 1e-5))
        while start + SPAN <= stop:
            if may_round_up(row, start, wide, dither, at):
                round_to_levels(row, start, SPAN, scale, levels, dither, at, out)
            else:
                for i in range(SPAN):
                    out[start + i] = 0
            start += SPAN
            at += SPAN
    round_to_levels(row, start, stop - start, scale, levels, dither, at, out)


_SIGNATURES = [
    f"void(float32[:, ::1], uint64[::1], int64[::1], int64[::1], int64, int64, float32[:, ::1], {kind}[:, ::1])"
    for kind in ("int8", "int16")
]


@njit(_SIGNATURES, cache=True, parallel=True, nogil=True)
def quantize(rows, seeds, rounds, clients, levels, width, norms, out):
    """Fill norms (r, buckets) and signed levels (r, p); rows are spread over threads."""
    limit = np.int32(levels)
    for job in prange(rows.shape[0]):
        row = rows[job]
        signed = out[job]
        dimension = row.size
        lanes = np.empty(LANES, np.float64)
        dither = np.empty(GROUP, np.uint32)
        loaded = -1  # the group of draws now in ``dither``
        for bucket in range(norms.shape[1]):
            start = bucket * width
            stop = min(start + width, dimension)
            norm = np.float32(np.sqrt(sum_of_squares(row[start:stop], lanes)))
            norms[job, bucket] = norm
            if not (norm > 0 and norm < np.inf):
                signed[start:stop] = 0
                continue
            scale = np.float64(levels) / np.float64(norm)
            sparse = 1024 * levels * levels < stop - start  # fewer than one level in 32, whatever x is
            for group in range(start // GROUP, (stop + GROUP - 1) // GROUP):
                if group != loaded:
                    fill_group(group, DITHER, seeds[job], rounds[job], clients[job], dither)
                    loaded = group
                first, last = max(group * GROUP, start), min(group * GROUP + GROUP, stop)
                at = first - group * GROUP
                round_group(
                    row, np.uint64(first), np.uint64(last), scale, limit, sparse, dither, np.uint64(at), signed
                )


_ADD_SIGNATURES = [
    f"void({kind}[:, ::1], float64[:, ::1], int64, int64[::1], float64[:, ::1])" for kind in ("int8", "int16")
]


@njit
def add_part(signed, first, last, unit, total):
    """Add unit * signed[first:last] onto total."""
    for i in range(first, last):
        if signed[i] != 0:
            total[i] += signed[i] * unit


@njit
def add_row(signed, unit, total):
    """Add unit * signed onto total, skipping 64 zero bytes at a time, then eight."""
    head, step, words = aligned_words(signed)
    add_part(signed, 0, head, unit, total)
    for w in range(0, words.size, 8):
        if any_of_eight(words, w):
            for word in range(w, w + 8):
                if words[word] != 0:
                    first = head + word * step
                    add_part(signed, first, first + step, unit, total)
    add_part(signed, head + words.size * step, signed.size, unit, total)


@njit(_ADD_SIGNATURES, cache=True, parallel=True, nogil=True)
def add_levels(signed, units, width, run_of, total):
    """Add each job's message to its run's total, in job order; twin: ``QuantizedMessage.add_to``.

    Coordinates are split among threads, so the order of additions never changes.
    """
    dimension = total.shape[1]
    parts = min(64, max(1, dimension // 4096))
    for part in prange(parts):
        low = dimension * part // parts
        high = dimension * (part + 1) // parts
        for job in range(signed.shape[0]):
            for bucket in range(low // width, (high + width - 1) // width):
                start = max(bucket * width, low)
                stop = min((bucket + 1) * width, high)
                add_row(signed[job, start:stop], units[job, bucket], total[run_of[job], start:stop])
