"""The low-precision quantizer in machine code; twin: ``fedpaq.quantizers.low_precision``."""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from fedpaq.compiled.philox import GROUP, fill_group

DITHER = 3  # Purpose.DITHER
CHUNK = 65_536
LANES = 256


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


@njit
def round_to_levels(values, scale, levels, dither, out):
    """Write floor(|x| * scale + u) with the sign of x for the coordinates of one group."""
    for i in range(values.size):
        value = values[i]
        level = np.int32(abs(np.float64(value)) * scale + np.float64(dither[i]) * 2.0**-32)
        level = min(level, levels)
        out[i] = -level if value < 0 else level


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
            for group in range(start // GROUP, (stop + GROUP - 1) // GROUP):
                if group != loaded:
                    fill_group(group, DITHER, seeds[job], rounds[job], clients[job], dither)
                    loaded = group
                first, last = max(group * GROUP, start), min(group * GROUP + GROUP, stop)
                within = first - group * GROUP
                round_to_levels(row[first:last], scale, limit, dither[within:], signed[first:last])


_ADD_SIGNATURES = [
    f"void({kind}[:, ::1], float64[:, ::1], int64, int64[::1], float64[:, ::1])" for kind in ("int8", "int16")
]


@njit
def add_row(signed, unit, total):
    """Add unit * signed onto total; runs of eight zero levels are skipped."""
    position = 0
    while position < signed.size:
        if position + 8 <= signed.size:
            some = signed[position]
            for i in range(position + 1, position + 8):
                some |= signed[i]
            if some == 0:
                position += 8
                continue
        stop = min(position + 8, signed.size)
        for i in range(position, stop):
            if signed[i] != 0:
                total[i] += signed[i] * unit
        position = stop


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
