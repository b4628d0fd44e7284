"""The block code in machine code; twin: ``fedpaq.codec.block_code``.

The four lanes are written out, so that their multiplications overlap, and no branch depends on a token.
"""

from typing import Any

import numpy as np
from numba import njit, types

from fedpaq.kernels.numba import kernel

BLOCK_SIZE = 256
LANE_SIZE = 64
CLASSES = 24
CONTEXTS = 3
STRIDE = 128
CLASS_SIZE = CONTEXTS * STRIDE
TOTAL = 4096
LEAST_STATE = 1 << 15
DIRECT = 16
BAD_END, EMPTY_TABLE, BEYOND_LEVELS = 1, 2, 3

_KINDS: dict[str, Any] = {"b": types.int8, "h": types.int16}
_ROWS = {char: types.Array(kind, 1, "C", readonly=True) for char, kind in _KINDS.items()}
_BODY = types.Array(types.uint8, 1, "C", readonly=True)


@kernel({char: types.void(row, types.uint8[::1]) for char, row in _ROWS.items()}, by=0)
def classify(row, classes):
    """Write each block's class: the bit length of its sum of magnitudes."""
    for block in range(classes.size):
        part = row[block * BLOCK_SIZE : (block + 1) * BLOCK_SIZE]
        total = np.int32(0)
        for i in range(part.size):
            total += abs(np.int32(part[i]))
        length = 0
        while total > 0:
            total >>= 1
            length += 1
        classes[block] = length


@kernel(
    {
        char: types.void(row, types.uint8[::1], types.uint8[::1], types.uint16[::1], types.int64[:, ::1])
        for char, row in _ROWS.items()
    },
    by=0,
)
def count_tokens(row, classes, tokens, entries, counts):
    """Write where each level's token stands (its table's start plus the token) and count them.

    Each lane has its own counters (4, tables * STRIDE): one set would wait for its own stores.
    """
    for block in range(classes.size):
        table = np.int64(classes[block]) * CLASS_SIZE
        first = block * BLOCK_SIZE
        part = row[first : first + BLOCK_SIZE]
        places = entries[first : first + BLOCK_SIZE]
        for i in range(part.size):
            before = part[i - 1] if i % LANE_SIZE else part[i] - part[i]
            context = np.int64(before != 0) + np.int64(before < 0)
            places[i] = table + context * STRIDE + tokens[part[i] & 0xFFFF]
        for step in range(LANE_SIZE):
            for lane in range(4):
                if lane * LANE_SIZE + step < part.size:
                    counts[lane, places[lane * LANE_SIZE + step]] += 1


@njit(inline="always")
def push(state, at, words, bound, reciprocal):
    """Push one token; ``bound`` packs frequency << 12 | start, ``reciprocal`` is 2^44 / frequency.

    The word is always stored and kept only if ``at`` moves: a branch would be mispredicted too often.
    """
    frequency = bound >> 12
    words[at - 1] = state & 0xFFFF
    full = np.int64(state >= frequency << 19)
    state >>= full << 4
    quotient = (state * reciprocal) >> 44  # exact, since state < frequency << 19
    return state + quotient * (TOTAL - frequency) + (bound & 0xFFF), at - full


@kernel("int64(uint16[::1], int64[::1], int64[::1], uint16[::1])")
def encode_tokens(entries, bounds, reciprocals, words):
    """Fill ``words`` from its end and return where they start."""
    at = words.size
    x0 = x1 = x2 = x3 = LEAST_STATE
    blocks = (entries.size + BLOCK_SIZE - 1) // BLOCK_SIZE
    for back in range(blocks):
        first = (blocks - 1 - back) * BLOCK_SIZE
        part = entries[first : first + BLOCK_SIZE]
        for undone in range(LANE_SIZE):
            i = LANE_SIZE - 1 - undone
            if i + 3 * LANE_SIZE < part.size:
                entry = part[i + 3 * LANE_SIZE]
                x3, at = push(x3, at, words, bounds[entry], reciprocals[entry])
            if i + 2 * LANE_SIZE < part.size:
                entry = part[i + 2 * LANE_SIZE]
                x2, at = push(x2, at, words, bounds[entry], reciprocals[entry])
            if i + LANE_SIZE < part.size:
                entry = part[i + LANE_SIZE]
                x1, at = push(x1, at, words, bounds[entry], reciprocals[entry])
            if i < part.size:
                entry = part[i]
                x0, at = push(x0, at, words, bounds[entry], reciprocals[entry])
    for state in (x3, x2, x1, x0):
        words[at - 1] = state >> 16
        words[at - 2] = state & 0xFFFF
        at -= 2
    return at


@njit(inline="always")
def pop(state, at, words, slot):
    """Pop the token whose slot packs offset << 20 | frequency << 7 | token."""
    state = ((slot >> 7) & 0x1FFF) * (state >> 12) + (slot >> 20)
    short = np.int64(state < LEAST_STATE)
    return state << (short << 4) | (np.int64(words[at]) & -short), at + short


@njit
def fill_slots(frequencies, classes, slots):
    """Fill the slots of each table of the classes in use; zeros mark a table that is empty."""
    seen = np.zeros(CLASSES, np.uint8)
    for block in range(classes.size):
        seen[classes[block]] = 1
    for table in range(CLASSES * CONTEXTS):
        if seen[table // CONTEXTS] == 0:
            continue
        slots[table, :] = 0
        start = 0
        for token in range(STRIDE):
            frequency = frequencies[table, token]
            for offset in range(frequency):
                slots[table, start + offset] = offset << 20 | frequency << 7 | token
            start += frequency


@kernel(
    {
        char: f"int64(uint16[::1], int64, uint8[::1], int64[:, ::1], uint32[:, ::1], int16[::1], {kind}[::1])"
        for char, kind in _KINDS.items()
    },
    by=6,
)
def decode_tokens(words, count, classes, frequencies, slots, bases, levels):
    """Fill the base levels; return the words used, or minus the kind of fault.

    ``words`` holds ``count`` words of the body, then a block's worth of zeros: so the end need be
    checked once a block only.
    """
    fill_slots(frequencies, classes, slots)
    x0, x1 = np.int64(words[0]) | np.int64(words[1]) << 16, np.int64(words[2]) | np.int64(words[3]) << 16
    x2, x3 = np.int64(words[4]) | np.int64(words[5]) << 16, np.int64(words[6]) | np.int64(words[7]) << 16
    at = 8
    empty = False
    for block in range(classes.size):
        if at > count:
            return -BAD_END
        table = np.int64(classes[block]) * CONTEXTS
        part = levels[block * BLOCK_SIZE : (block + 1) * BLOCK_SIZE]
        t0 = t1 = t2 = t3 = table
        for i in range(min(LANE_SIZE, part.size)):
            slot = np.int64(slots[t0, x0 & 0xFFF])
            x0, at = pop(x0, at, words, slot)
            level = bases[slot & 0x7F]
            empty |= slot == 0
            part[i] = level
            t0 = table + np.int64(level != 0) + np.int64(level < 0)
            if i + LANE_SIZE < part.size:
                slot = np.int64(slots[t1, x1 & 0xFFF])
                x1, at = pop(x1, at, words, slot)
                level = bases[slot & 0x7F]
                empty |= slot == 0
                part[i + LANE_SIZE] = level
                t1 = table + np.int64(level != 0) + np.int64(level < 0)
            if i + 2 * LANE_SIZE < part.size:
                slot = np.int64(slots[t2, x2 & 0xFFF])
                x2, at = pop(x2, at, words, slot)
                level = bases[slot & 0x7F]
                empty |= slot == 0
                part[i + 2 * LANE_SIZE] = level
                t2 = table + np.int64(level != 0) + np.int64(level < 0)
            if i + 3 * LANE_SIZE < part.size:
                slot = np.int64(slots[t3, x3 & 0xFFF])
                x3, at = pop(x3, at, words, slot)
                level = bases[slot & 0x7F]
                empty |= slot == 0
                part[i + 3 * LANE_SIZE] = level
                t3 = table + np.int64(level != 0) + np.int64(level < 0)
    if empty:
        return -EMPTY_TABLE
    if at > count or not (x0 == x1 == x2 == x3 == LEAST_STATE):
        return -BAD_END
    return at


@njit
def octave_shift(magnitude):
    """Return how many raw bits a magnitude of at least 16 has: its bit length less three."""
    shift = 0
    while magnitude >> shift >= 8:
        shift += 1
    return shift


@kernel({char: types.int64(row, types.uint8[::1]) for char, row in _ROWS.items()}, by=0)
def encode_extras(row, out):
    """Write the raw bits of the large levels, low bits first; return the bytes."""
    held, count, at = 0, 0, 0
    for i in range(row.size):
        magnitude = abs(int(row[i]))
        if magnitude >= DIRECT:
            shift = octave_shift(magnitude)
            held |= (magnitude & ((1 << shift) - 1)) << count
            count += shift
            while count >= 8:
                out[at] = held & 0xFF
                held >>= 8
                count -= 8
                at += 1
    if count > 0:
        out[at] = held
        at += 1
    return at


@kernel({char: types.int64(_BODY, types.int64, kind[::1]) for char, kind in _KINDS.items()}, by=2)
def add_extras(data, limit, levels):
    """Add the raw bits to the large levels; return 0, or the kind of fault."""
    held, count, at = 0, 0, 0
    for i in range(levels.size):
        magnitude = abs(int(levels[i]))
        if magnitude >= DIRECT:
            shift = octave_shift(magnitude)
            while count < shift:
                if at == data.size:
                    return BAD_END
                held |= np.int64(data[at]) << count
                count += 8
                at += 1
            magnitude += held & ((1 << shift) - 1)
            held >>= shift
            count -= shift
            if magnitude > limit:
                return BEYOND_LEVELS
            levels[i] = magnitude if levels[i] > 0 else -magnitude
    return 0 if at == data.size and held == 0 else BAD_END
