"""Block code: every level of a large dense message, by interleaved rANS with static tables.

Body: the side stream's length (a varint), the side stream (see ``frequencies``), then little-endian
16-bit words, then the raw bits of large levels, low bits first, zero-padded to a byte.

A block is 256 levels in four lanes of 64; step j of a block passes level j of each lane, lane 0 first.
Each lane has a state x in [2^15, 2^31). With frequency f and start c (the sum of the frequencies of the
tokens before), a token is pushed by

    if x >= f << 19: send the word x mod 2^16, x >>= 16
    x = (x // f << 12) + x mod f + c

and popped by undoing that, last pushed first: so the encoder runs backwards from states of 2^15, and the
words start with the four final states, low word first. The table of a token is that of its block's
class and of the sign of the level before it in its lane (a lane starts as after a zero).

The block code is several times faster than the gap code on dense messages and a little longer on
real updates, so it is used only where time matters. Twin: ``fedpaq.kernels.numba.block_code``.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from fedpaq.arrays import AnyArray, Int64, UInt8
from fedpaq.codec.frame import pack_varint, read_side
from fedpaq.codec.frequencies import CLASSES, CONTEXTS, STRIDE, TOTAL, decode_side, encode_side, normalise
from fedpaq.codec.tokens import DIRECT, base_level, base_table, extra_bits, token_of, token_table
from fedpaq.errors import WireFormatError
from fedpaq.kernels import numba as compiled
from fedpaq.quantizers.message import level_dtype

Levels = AnyArray  # int8 or int16

BLOCK_SIZE = 256
LANES = 4
LANE_SIZE = BLOCK_SIZE // LANES
LEAST_STATE = 1 << 15

CORRUPT = {
    1: "the body does not end where its last level does; the payload is corrupt",
    2: "a frequency table in use is empty; the payload is corrupt",
    3: "a level exceeds levels; the payload is corrupt",
}


def encode(row: Levels, levels: int) -> bytes:
    """Return the body of one row of levels."""
    kernels = compiled.load("block_code")
    tokens = token_of(-levels) + 1
    if kernels is None:
        classes: AnyArray = classify(row)
        frequencies = normalise(count_tokens(row, classes))
        words, extras = encode_tokens(row, classes, frequencies), encode_extras(row)
    else:
        classes, frequencies, words, extras = _encode_compiled(kernels, row)
    side = encode_side(classes, frequencies, tokens)
    return b"".join([pack_varint(len(side)), side, words, extras])


def _encode_compiled(kernels: Any, row: Levels) -> tuple[UInt8, Int64, bytes, bytes]:
    classes = np.empty(num_blocks(row.size), np.uint8)
    kernels.classify(row, classes)
    counts = np.zeros((LANES, CLASSES * CONTEXTS * STRIDE), np.int64)
    entries = np.empty(row.size, np.uint16)
    kernels.count_tokens(row, classes, token_table(), entries, counts)
    occurrences = counts.sum(axis=0).reshape(CLASSES, CONTEXTS, STRIDE)
    frequencies = normalise(occurrences)
    starts = np.cumsum(frequencies, axis=-1) - frequencies
    bounds = (frequencies << 12 | starts).reshape(-1).view(np.uint64)
    reciprocals = (-(-(1 << 44) // np.maximum(frequencies, 1))).reshape(-1).view(np.uint64)
    words = np.empty(row.size + 4 * LANES, np.uint16)  # a token costs 12 bits at most
    start = kernels.encode_tokens(entries, bounds, reciprocals, words)
    escapes = int(occurrences[..., token_of(DIRECT) :].sum())
    extras = np.empty(2 * escapes + 1, np.uint8)
    size = kernels.encode_extras(row, extras) if escapes else 0
    return classes, frequencies, words[start:].astype("<u2", copy=False).tobytes(), extras[:size].tobytes()


def decode(body: memoryview, dimension: int, levels: int) -> Levels:
    """Return the levels of a body; raises WireFormatError."""
    side, at = read_side(body, 0)
    classes, frequencies = decode_side(side, num_blocks(dimension), token_of(-levels) + 1)
    data = body[at:]
    kernels = compiled.load("block_code")
    if kernels is None:
        signed, used = decode_tokens(bytes(data), dimension, classes, frequencies)
        add_extras(signed, bytes(data[used:]))
        if np.abs(signed).max() > levels:
            raise WireFormatError(CORRUPT[3])
        return signed.astype(level_dtype(levels))
    return _decode_compiled(kernels, data, classes, frequencies, dimension, levels)


def _decode_compiled(
    kernels: Any, data: memoryview, classes: Levels, frequencies: Int64, dimension: int, levels: int
) -> Levels:
    signed = np.empty(dimension, level_dtype(levels))
    slots = np.empty((CLASSES * CONTEXTS, TOTAL), np.uint32)
    count = len(data) // 2
    words = np.zeros(count + 2 * BLOCK_SIZE, np.uint16)
    words[:count] = np.frombuffer(data, "<u2", count)
    tables = frequencies.reshape(CLASSES * CONTEXTS, STRIDE)
    used = kernels.decode_tokens(words, count, classes, tables, slots, base_table(), signed)
    fault = -used if used < 0 else 0
    if not fault and (levels >= DIRECT or 2 * used != len(data)):
        fault = kernels.add_extras(np.frombuffer(data[2 * used :], np.uint8), levels, signed)
    if fault:
        raise WireFormatError(CORRUPT[fault])
    return signed


def num_blocks(dimension: int) -> int:
    """Return how many blocks hold ``dimension`` levels."""
    return -(-dimension // BLOCK_SIZE)


def classify(row: Levels) -> Int64:
    """Return each block's class: the bit length of its sum of magnitudes."""
    sums = np.zeros(num_blocks(row.size), np.int64)
    np.add.at(sums, np.arange(row.size) // BLOCK_SIZE, np.abs(row.astype(np.int64)))
    return np.array([int(total).bit_length() for total in sums], np.int64)


def schedule(dimension: int) -> Iterator[tuple[int, int, int]]:
    """Yield (position, lane, position before it in its lane or -1) in the order of decoding."""
    for block in range(num_blocks(dimension)):
        for step in range(LANE_SIZE):
            for lane in range(LANES):
                position = block * BLOCK_SIZE + lane * LANE_SIZE + step
                if position < dimension:
                    yield position, lane, position - 1 if step else -1


def context_of(level: int) -> int:
    """Return the context that a level makes for the next: zero, positive, negative."""
    return 0 if level == 0 else 1 if level > 0 else 2


def count_tokens(row: Levels, classes: Int64) -> Int64:
    """Return how often each token occurs in each table, (CLASSES, CONTEXTS, STRIDE)."""
    counts = np.zeros((CLASSES, CONTEXTS, STRIDE), np.int64)
    for position, _, before in schedule(row.size):
        context = 0 if before < 0 else context_of(int(row[before]))
        counts[classes[position // BLOCK_SIZE], context, token_of(int(row[position]))] += 1
    return counts


def encode_tokens(row: Levels, classes: Int64, frequencies: Int64) -> bytes:
    """Return the words, low byte first."""
    starts = np.cumsum(frequencies, axis=-1) - frequencies
    states = [LEAST_STATE] * LANES
    words: list[int] = []  # last first
    for position, lane, before in reversed(list(schedule(row.size))):
        context = 0 if before < 0 else context_of(int(row[before]))
        at = classes[position // BLOCK_SIZE], context, token_of(int(row[position]))
        frequency, start, state = int(frequencies[at]), int(starts[at]), states[lane]
        if state >= frequency << 19:
            words.append(state & 0xFFFF)
            state >>= 16
        states[lane] = (state // frequency << 12) + state % frequency + start
    for state in reversed(states):
        words += [state >> 16, state & 0xFFFF]
    return np.array(words[::-1], "<u2").tobytes()


def decode_tokens(data: bytes, dimension: int, classes: Int64, frequencies: Int64) -> tuple[Int64, int]:
    """Return the base levels (p,) and the bytes used."""
    ends = np.cumsum(frequencies, axis=-1)
    at = 4 * LANES
    states = [int.from_bytes(data[4 * lane : 4 * lane + 4], "little") for lane in range(LANES)]
    levels = np.zeros(dimension, np.int64)
    for position, lane, before in schedule(dimension):
        context = 0 if before < 0 else context_of(int(levels[before]))
        table = classes[position // BLOCK_SIZE], context
        slot = states[lane] & 0xFFF
        token = int(np.searchsorted(ends[table], slot, side="right"))
        if token >= STRIDE:
            raise WireFormatError(CORRUPT[2])
        frequency = int(frequencies[table][token])
        state = frequency * (states[lane] >> 12) + slot - int(ends[table][token]) + frequency
        if state < LEAST_STATE:
            state = state << 16 | int.from_bytes(data[at : at + 2].ljust(2, b"\0"), "little")
            at += 2
        states[lane] = state
        levels[position] = base_level(token)
    if at > len(data) or states != [LEAST_STATE] * LANES:
        raise WireFormatError(CORRUPT[1])
    return levels, at


def encode_extras(row: Levels) -> bytes:
    """Return the raw bits of the large levels, in order of position."""
    bits = shift = 0
    for level in row[np.abs(row.astype(np.int64)) >= DIRECT]:
        token = token_of(int(level))
        bits |= abs(int(level) - base_level(token)) << shift
        shift += extra_bits(token)
    return bits.to_bytes((shift + 7) // 8, "little")


def add_extras(levels: Int64, data: bytes) -> None:
    """Add the raw bits to the large levels, using all of ``data``."""
    bits, shift = int.from_bytes(data, "little"), 0
    for position in np.flatnonzero(np.abs(levels) >= DIRECT):
        width = extra_bits(token_of(int(levels[position])))
        extra = bits >> shift & ((1 << width) - 1)
        levels[position] += extra if levels[position] > 0 else -extra
        shift += width
    if len(data) != (shift + 7) // 8 or bits >> shift:
        raise WireFormatError(CORRUPT[1])
