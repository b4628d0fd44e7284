"""Gap code: a message as its non-zeros, each a gap, a sign and a magnitude.

Body: the number of non-zeros (a varint), then one range-coded stream (nothing if there are none). For
each non-zero, in order:

1. the zeros since the one before, an adaptive integer. Its local mean blends the last 16 gaps with 16
   times the mean of what remains (zeros left / non-zeros left + 1, both known to the decoder): so the
   code follows density that varies along the vector and costs nothing where it does not;
2. the sign, a decision whose context is the gap (0, 1..2, more) and the two signs before;
3. if levels > 1, |level| - 1, an adaptive integer; its local mean is over the last eight.

``walk`` runs either way: told the non-zeros it encodes, else it decodes.
Twin: ``fedpaq.kernels.numba.gap_code``.
"""

import functools
import math

import numpy as np

from fedpaq.arrays import AnyArray, Int16, Int64, UInt8
from fedpaq.codec.adaptive_integers import (
    ONE,
    RECIPROCALS,
    TABLE_SIZE,
    Coder,
    States,
    code_bit,
    code_integer,
    pack_state,
    prior_table,
)
from fedpaq.codec.range_coder import RangeDecoder, RangeEncoder
from fedpaq.errors import WireFormatError
from fedpaq.kernels import numba as compiled

Levels = AnyArray  # int8 or int16

GAP_WINDOW = 16
MAGNITUDE_WINDOW = 8
SIGNS = 12  # contexts of the sign: 3 gaps x 4 pairs of signs
BYTES_PER_NONZERO = 8  # room to start with; a stream may need more, hardly ever does
GAPS_AT, MAGNITUDES_AT = SIGNS, SIGNS + TABLE_SIZE

CORRUPT = {
    1: "the body leaves the coder's interval; the payload is corrupt",
    2: "a non-zero lies beyond the dimension; the payload is corrupt",
    3: "a level exceeds levels; the payload is corrupt",
    4: "the body does not end where its last symbol does; the payload is corrupt",
}


@functools.cache
def initial_states() -> States:
    """Return the states every message starts from: signs, gaps, magnitudes."""
    signs = np.full(SIGNS, pack_state(ONE * 8, 16), np.int32)
    return np.concatenate([signs, prior_table(8), prior_table(16)])


def expected_excess(levels: int, width: int) -> int:
    """Return a guess of |level| - 1 for a bucket this wide, in whole levels; the first window's padding."""
    return levels // math.isqrt(width)


def walk(
    coder: Coder, dimension: int, levels: int, width: int, count: int, nonzeros: list[tuple[int, int]] | None
) -> list[tuple[int, int]]:
    """Pass ``count`` non-zeros (position, level) through the coder and return them."""
    states = [int(state) for state in initial_states()]
    positions, excesses, signs = [-1], list[int](), [0, 0]
    guess = expected_excess(levels, width)
    passed = []
    for t in range(count):
        known = nonzeros[t] if nonzeros is not None else None
        gap_mean = mean_gap(positions, dimension, count - t)
        told = None if known is None else known[0] - positions[-1] - 1
        gap = code_integer(coder, states, GAPS_AT, gap_mean, told)
        position = positions[-1] + 1 + gap
        if position > dimension - (count - t):
            raise WireFormatError(CORRUPT[2])
        context = 4 * (0 if gap == 0 else 1 if gap < 3 else 2) + 2 * signs[-1] + signs[-2]
        sign = code_bit(coder, states, context, None if known is None else int(known[1] > 0))
        excess = 0
        if levels > 1:
            window = excesses[-MAGNITUDE_WINDOW:]
            excess_mean = sum(window) + (MAGNITUDE_WINDOW - len(window)) * guess  # in eighths
            told = None if known is None else abs(known[1]) - 1
            excess = code_integer(coder, states, MAGNITUDES_AT, excess_mean, told)
            if excess >= levels:
                raise WireFormatError(CORRUPT[3])
        positions.append(position)
        excesses.append(excess)
        signs.append(sign)
        passed.append((position, excess + 1 if sign else -excess - 1))
    return passed


def mean_gap(positions: list[int], dimension: int, left: int) -> int:
    """Return the local mean of the gaps, in eighths; ``positions`` starts with -1."""
    seen = min(len(positions) - 1, GAP_WINDOW)
    zeros = positions[-1] - positions[-1 - seen] - seen
    remaining = ((dimension - positions[-1] - 1 - left) << 4) // (left + 1)  # in sixteenths
    return ((zeros << 4) + (2 * GAP_WINDOW - seen) * remaining) >> 6


def encode_numpy(positions: Int64, values: Levels, dimension: int, levels: int, width: int) -> bytes:
    """Return the stream of one message's non-zeros; the twin of the compiled encoder."""
    encoder = RangeEncoder()
    nonzeros = [(int(at), int(value)) for at, value in zip(positions, values, strict=True)]
    walk(encoder, dimension, levels, width, len(nonzeros), nonzeros)
    return encoder.finish()


def encode_nonzeros(
    ends: Int64, positions: Int64, values: Levels, dimension: int, levels: int, width: int
) -> list[bytes]:
    """Return the stream of each message, its non-zeros at ends[j] : ends[j + 1]."""
    out, starts, sizes = _streams(ends, positions, values, dimension, levels, width)
    return [out[start : start + size].tobytes() for start, size in zip(starts, sizes, strict=False)]


def measure_nonzeros(ends: Int64, positions: Int64, values: Levels, dimension: int, levels: int, width: int) -> Int64:
    """Return the bytes of each stream that ``encode_nonzeros`` makes."""
    return _streams(ends, positions, values, dimension, levels, width)[2]


def _streams(
    ends: Int64, positions: Int64, values: Levels, dimension: int, levels: int, width: int
) -> tuple[UInt8, Int64, Int64]:
    """Return room with the streams in it, where each starts, and its bytes."""
    kernels = compiled.load("gap_code")
    if kernels is None:
        parts = [slice(ends[j], ends[j + 1]) for j in range(len(ends) - 1)]
        streams = [encode_numpy(positions[part], values[part], dimension, levels, width) for part in parts]
        sizes = np.array([len(stream) for stream in streams], np.int64)
        return np.frombuffer(b"".join(streams), np.uint8), np.cumsum(sizes) - sizes, sizes
    model = (dimension, levels, expected_excess(levels, width), initial_states(), RECIPROCALS)
    sizes = np.empty(len(ends) - 1, np.int64)
    room = BYTES_PER_NONZERO
    while True:
        starts = room * ends + 16 * np.arange(len(ends))
        out = np.empty(starts[-1], np.uint8)
        kernels.encode(ends, positions, values, *model, out, starts, sizes)
        if np.all(starts[:-1] + sizes <= starts[1:]):
            return out, starts, sizes
        room = 2 * room + 1  # the kernel counts on, but writes nothing beyond its part


def decode_nonzeros(
    stream: bytes | memoryview, dimension: int, levels: int, width: int, count: int
) -> tuple[Int64, Int16]:
    """Return positions and levels of the non-zeros; raises WireFormatError."""
    kernels = compiled.load("gap_code")
    if kernels is None:
        decoder = RangeDecoder(bytes(stream))
        nonzeros = walk(decoder, dimension, levels, width, count, None)
        decoder.finish()
        pairs = np.array(nonzeros, np.int64).reshape(-1, 2)
        return pairs[:, 0].copy(), pairs[:, 1].astype(np.int16)
    positions, values = np.empty(count, np.int64), np.empty(count, np.int16)
    body = np.frombuffer(stream, np.uint8)
    guess = expected_excess(levels, width)
    fault = kernels.decode(body, dimension, levels, guess, initial_states(), RECIPROCALS, positions, values)
    if fault:
        raise WireFormatError(CORRUPT[fault])
    return positions, values
