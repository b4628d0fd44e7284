"""The range coder in machine code; twin: ``fedpaq.codec.range_coder``.

Its state travels as a tuple of integers, which stays in registers: (low, range, at) to encode,
(low, range, code, at) to decode. Everything fits 49 bits, so int64 is used throughout. Encoding past the
end of ``out`` writes nothing but keeps counting: the caller learns the size it needed.
"""

import numpy as np
from numba import njit, types

TOP = 1 << 48
BOTTOM = 1 << 40
MASK = TOP - 1
# numba compiles a function again for every literal that it is handed: these are no literals.
ZERO, UNIT, WHOLE = np.int64(0), np.int64(1), np.int64(TOP)
BODY = types.Array(types.uint8, 1, "C", readonly=True)  # what is decoded: payloads are immutable bytes


@njit(inline="always")
def settle(low, size, at, out):
    """Send the bytes that are settled; bit 48 of ``low``, set at most once since, is their carry."""
    while size < BOTTOM:
        if low >= TOP:
            place = min(at, out.size) - 1
            while place >= 0 and out[place] == 0xFF:
                out[place] = 0
                place -= 1
            if place >= 0:
                out[place] += 1
        if at < out.size:
            out[at] = low >> 40
        low = (low << 8) & MASK
        size <<= 8
        at += 1
    return low, size, at


@njit(inline="always")
def put_bit(low, size, at, out, probability, bit):
    """Append one decision; in arithmetic, since a branch on the bit is mispredicted too often."""
    bound = (size >> 16) * probability
    low += bound & (bit - 1)
    rest = size - bound
    size = rest + ((bound - rest) & -bit)
    return settle(low, size, at, out)


@njit(inline="always")
def put_raw(low, size, at, out, count, value):
    """Append raw bits, in runs of at most 16."""
    left = count
    while left > 0:
        width = min(left, 16)
        left -= width
        size >>= width
        low += ((value >> left) & ((1 << width) - 1)) * size
        low, size, at = settle(low, size, at, out)
    return low, size, at


@njit(inline="always")
def shortest_offset(low, size):
    """Return the offset and bytes of the shortest number in the interval."""
    count, offset = 0, -low & MASK
    while offset >= size:
        count += 1
        offset = -low & (MASK >> (8 * count))
    return offset, count


@njit(inline="always")
def put_end(low, size, at, out):
    """Close the interval and return the number of bytes."""
    offset, count = shortest_offset(low, size)
    low += offset
    for _ in range(max(count, 1)):  # at least once, for the carry
        low, size, at = settle(low, BOTTOM >> 8, at, out)
    if at <= out.size:
        while at > 0 and out[at - 1] == 0:
            at -= 1
    return at


@njit(inline="always")
def put_start():
    """Return the encoder's first state."""
    return ZERO, WHOLE, ZERO


@njit(inline="always")
def get_start(body):
    """Return the decoder's first state."""
    code = ZERO
    for at in range(6):
        code = code << 8 | (np.int64(body[at]) if at < body.size else 0)
    return ZERO, WHOLE, code, ZERO + 6


@njit(inline="always")
def refill(low, size, code, at, body):
    """Take in bytes until the interval is wide again; beyond the end they are zeros."""
    while size < BOTTOM:
        code = code << 8 | (np.int64(body[at]) if at < body.size else 0)
        low = (low << 8) & MASK
        size <<= 8
        at += 1
    return low, size, code, at


@njit(inline="always")
def get_bit(low, size, code, at, body, probability):
    """Return the state and the next decision."""
    bound = (size >> 16) * probability
    if code < bound:
        size = bound
        bit = 1
    else:
        code -= bound
        low = (low + bound) & MASK
        size -= bound
        bit = 0
    low, size, code, at = refill(low, size, code, at, body)
    return low, size, code, at, bit


@njit(inline="always")
def get_raw(low, size, code, at, body, count):
    """Return the state and the next raw bits; -1 where no encoder can have been."""
    left = count
    value = 0
    while left > 0:
        width = min(left, 16)
        left -= width
        size >>= width
        chunk = code // size
        if chunk >> width:
            return low, size, code, at, -1
        code -= chunk * size
        low = (low + chunk * size) & MASK
        value = value << width | chunk
        low, size, code, at = refill(low, size, code, at, body)
    return low, size, code, at, value


@njit(inline="always")
def ends_well(low, size, code, at, body):
    """Whether the bytes are exactly those of the encoder."""
    offset, _ = shortest_offset(low, size)
    return code == offset and body.size <= at and (body.size == 0 or body[body.size - 1] != 0)
