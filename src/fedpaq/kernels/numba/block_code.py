"""The block code in machine code; twin: ``fedpaq.codec.block_code``.

The four lanes are written out, so that their multiplications overlap, and no branch depends on a token. Only the
last block may be short, so it has a loop of its own. States and indices are unsigned: an index that may be negative
would be looked at before each use.
"""

from typing import Any

import numpy as np
from numba import njit, types, uint64

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
        table = np.uint16(classes[block]) * np.uint16(CLASS_SIZE)
        first = block * BLOCK_SIZE
        part = row[first : first + BLOCK_SIZE]
        places = entries[first : first + BLOCK_SIZE]
        largest = np.int32(0)
        for i in range(part.size):
            largest = max(largest, abs(np.int32(part[i])))
        if largest < DIRECT:  # arithmetic, which vectorises, in place of the table
            for i in range(part.size):
                places[i] = table + 2 * abs(part[i]) - (part[i] > 0)
        else:
            for i in range(part.size):
                places[i] = table + tokens[part[i] & 0xFFFF]
        for lane in range(0, part.size, LANE_SIZE):  # the first of a lane is as after a zero
            now, before = part[lane + 1 : lane + LANE_SIZE], part[lane : lane + LANE_SIZE - 1]
            context = places[lane + 1 : lane + LANE_SIZE]
            for i in range(now.size):
                context[i] += np.uint16(before[i] != 0) * np.uint16(STRIDE) + np.uint16(before[i] < 0) * np.uint16(
                    STRIDE
                )
        if part.size == BLOCK_SIZE:
            for i in range(np.uint64(LANE_SIZE)):
                counts[0, places[i]] += 1
                counts[1, places[i + np.uint64(64)]] += 1
                counts[2, places[i + np.uint64(128)]] += 1
                counts[3, places[i + np.uint64(192)]] += 1
        else:
            for i in range(part.size):
                counts[i // LANE_SIZE, places[i]] += 1


@njit(inline="always")
def push(state, at, words, bound, reciprocal):
    """Push one token; ``bound`` packs frequency << 12 | start, ``reciprocal`` is 2^44 / frequency.

    The word is always stored and kept only if ``at`` moves: a branch would be mispredicted too often.
    """
    frequency = bound >> uint64(12)
    words[at - uint64(1)] = state & uint64(0xFFFF)
    full = uint64(state >= frequency << uint64(19))
    state >>= full << uint64(4)
    quotient = (state * reciprocal) >> uint64(44)  # exact, since state < frequency << 19
    return state + quotient * (uint64(TOTAL) - frequency) + (bound & uint64(0xFFF)), at - full


@njit
def push_ragged(entries, bounds, reciprocals, words):
    """Push the last block, which may be short; return the states and where the words start."""
    states = np.full(4, uint64(LEAST_STATE))
    at = uint64(words.size)
    for undone in range(4 * LANE_SIZE):
        lane = 3 - undone % 4
        i = lane * LANE_SIZE + LANE_SIZE - 1 - undone // 4
        if i < entries.size:
            entry = entries[i]
            states[lane], at = push(states[lane], at, words, bounds[entry], reciprocals[entry])
    return states, at


@kernel("int64(uint16[::1], uint64[::1], uint64[::1], uint16[::1])")
def encode_tokens(entries, bounds, reciprocals, words):
    """Fill ``words`` from its end and return where they start."""
    last = (entries.size - 1) // BLOCK_SIZE * BLOCK_SIZE
    states, at = push_ragged(entries[last:], bounds, reciprocals, words)
    x0, x1, x2, x3 = states[0], states[1], states[2], states[3]
    for back in range(last // BLOCK_SIZE):
        first = uint64(last - (back + 1) * BLOCK_SIZE)
        for undone in range(LANE_SIZE):
            i = first + uint64(LANE_SIZE - 1 - undone)
            e3, e2 = uint64(entries[i + uint64(192)]), uint64(entries[i + uint64(128)])
            e1, e0 = uint64(entries[i + uint64(64)]), uint64(entries[i])
            x3, at = push(x3, at, words, bounds[e3], reciprocals[e3])
            x2, at = push(x2, at, words, bounds[e2], reciprocals[e2])
            x1, at = push(x1, at, words, bounds[e1], reciprocals[e1])
            x0, at = push(x0, at, words, bounds[e0], reciprocals[e0])
    for state in (x3, x2, x1, x0):
        words[at - uint64(1)] = state >> uint64(16)
        words[at - uint64(2)] = state & uint64(0xFFFF)
        at -= uint64(2)
    return at


@njit(inline="always")
def pop(state, at, words, slots, table):
    """Pop a token; its slot packs offset << 20 | frequency << 7 | token. Return state, at and slot."""
    slot = uint64(slots[(table << uint64(12)) + (state & uint64(0xFFF))])
    state = ((slot >> uint64(7)) & uint64(0x1FFF)) * (state >> uint64(12)) + (slot >> uint64(20))
    short = uint64(state < uint64(LEAST_STATE))
    word = uint64(words[at])
    return (state << uint64(16)) | word if short else state, at + short, slot


@njit(inline="always")
def context_after(slot):
    """Return the context that a token makes for the next: zero, positive (odd), negative."""
    token = slot & uint64(0x7F)
    return uint64(token != uint64(0)) * (uint64(2) - (token & uint64(1)))


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
    flat = slots.reshape(slots.size)
    x0, x1 = uint64(words[0]) | uint64(words[1]) << uint64(16), uint64(words[2]) | uint64(words[3]) << uint64(16)
    x2, x3 = uint64(words[4]) | uint64(words[5]) << uint64(16), uint64(words[6]) | uint64(words[7]) << uint64(16)
    at = uint64(8)
    least = uint64(1)  # of all slots: zero if a table is empty
    whole = levels.size // BLOCK_SIZE
    for block in range(whole):
        if at > uint64(count):
            return -BAD_END
        table = uint64(classes[block]) * uint64(CONTEXTS)
        first = uint64(block * BLOCK_SIZE)
        t0 = t1 = t2 = t3 = table
        for step in range(LANE_SIZE):
            i = first + uint64(step)
            x0, at, s0 = pop(x0, at, words, flat, t0)
            x1, at, s1 = pop(x1, at, words, flat, t1)
            x2, at, s2 = pop(x2, at, words, flat, t2)
            x3, at, s3 = pop(x3, at, words, flat, t3)
            t0, t1 = table + context_after(s0), table + context_after(s1)
            t2, t3 = table + context_after(s2), table + context_after(s3)
            levels[i] = bases[s0 & uint64(0x7F)]
            levels[i + uint64(64)] = bases[s1 & uint64(0x7F)]
            levels[i + uint64(128)] = bases[s2 & uint64(0x7F)]
            levels[i + uint64(192)] = bases[s3 & uint64(0x7F)]
            least = min(least, min(min(s0, s1), min(s2, s3)))
    if whole < classes.size:
        if at > uint64(count):
            return -BAD_END
        states = np.array([x0, x1, x2, x3])
        table = uint64(classes[whole]) * uint64(CONTEXTS)
        tables = np.full(4, table)
        part = levels[whole * BLOCK_SIZE :]
        for step in range(4 * LANE_SIZE):
            lane = step % 4
            i = lane * LANE_SIZE + step // 4
            if i < part.size:
                states[lane], at, slot = pop(states[lane], at, words, flat, tables[lane])
                tables[lane] = table + context_after(slot)
                part[i] = bases[slot & uint64(0x7F)]
                least = min(least, slot)
        x0, x1, x2, x3 = states[0], states[1], states[2], states[3]
    if least == uint64(0):
        return -EMPTY_TABLE
    if at > uint64(count) or not (x0 == x1 == x2 == x3 == uint64(LEAST_STATE)):
        return -BAD_END
    return np.int64(at)


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
