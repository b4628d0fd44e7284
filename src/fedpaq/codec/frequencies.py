"""Frequencies: the static tables of the block code, and the side stream that carries them.

Each block of 256 levels has a class, the bit length of the sum of its magnitudes; each class has
three frequency tables, chosen by the sign of the level before. A table's frequencies sum to 4096.

The side stream is one range-coded sequence of adaptive integers: for each block the zigzag of the
class minus the class before, then for each class in use, ascending, its three tables, token by token.
The local mean is over the last four integers; classes and tables have contexts of their own.

Twin: ``fedpaq.kernels.numba.block_code``.
"""

import functools

import numpy as np

from fedpaq.arrays import AnyArray, Int64
from fedpaq.codec.adaptive_integers import RECIPROCALS, TABLE_SIZE, Coder, States, code_integer, prior_table
from fedpaq.codec.range_coder import RangeDecoder, RangeEncoder
from fedpaq.errors import WireFormatError
from fedpaq.kernels import numba as compiled

CLASSES = 24  # bit lengths 0..23 of sums up to 256 * 32767
CONTEXTS = 3  # the level before is zero, positive, negative
TOTAL = 4096
STRIDE = 128  # room for a table's tokens
SIDE_WINDOW = 4

CORRUPT = {
    1: "the side stream leaves the coder's interval; the payload is corrupt",
    2: "a block's class is out of range; the payload is corrupt",
    3: "the side stream does not end where its last symbol does; the payload is corrupt",
    4: f"a frequency table does not sum to {TOTAL}; the payload is corrupt",
}


@functools.cache
def side_states() -> States:
    """Return the states the side stream starts from: classes, tables."""
    return np.concatenate([prior_table(4), prior_table(4)])


def normalise(counts: Int64) -> Int64:
    """Scale token counts (..., STRIDE) to frequencies that sum to TOTAL, none of them lost.

    The remainder goes to the commonest token; with at most 119 tokens it never takes all it has.
    """
    flat = counts.reshape(-1, counts.shape[-1])
    sums = flat.sum(axis=1, keepdims=True)
    frequencies = np.where(flat > 0, np.maximum(flat * TOTAL // np.maximum(sums, 1), 1), 0)
    commonest = frequencies.argmax(axis=1)
    short = np.where(sums[:, 0] > 0, TOTAL - frequencies.sum(axis=1), 0)
    frequencies[np.arange(len(flat)), commonest] += short
    return frequencies.reshape(counts.shape)


def pass_side(coder: Coder, blocks: int, tokens: int, known: tuple[AnyArray, Int64] | None) -> tuple[Int64, Int64]:
    """Pass classes (blocks,) and frequencies (CLASSES, CONTEXTS, STRIDE) through the coder."""
    states = [int(state) for state in side_states()]
    classes = np.zeros(blocks, np.int64)
    window, before = [0] * SIDE_WINDOW, 0
    for block in range(blocks):
        told = None if known is None else zigzag(int(known[0][block]) - before)
        step = code_integer(coder, states, 0, 2 * sum(window[-SIDE_WINDOW:]), told)
        window.append(step)
        before += unzigzag(step)
        if not 0 <= before < CLASSES:
            raise WireFormatError(CORRUPT[2])
        classes[block] = before
    frequencies = np.zeros((CLASSES, CONTEXTS, STRIDE), np.int64)
    window = [0] * SIDE_WINDOW
    for index in np.ndindex(CLASSES, CONTEXTS, tokens):
        if index[0] in classes:
            told = None if known is None else int(known[1][index])
            frequency = code_integer(coder, states, TABLE_SIZE, 2 * sum(window[-SIDE_WINDOW:]), told)
            if frequency > TOTAL:
                raise WireFormatError(CORRUPT[4])
            window.append(frequency)
            frequencies[index] = frequency
    return classes, frequencies


def zigzag(step: int) -> int:
    """Map 0, -1, 1, -2, ... to 0, 1, 2, 3, ..."""
    return 2 * step if step >= 0 else -2 * step - 1


def unzigzag(code: int) -> int:
    """Undo ``zigzag``."""
    return code >> 1 if code % 2 == 0 else -(code + 1 >> 1)


def encode_side(classes: AnyArray, frequencies: Int64, tokens: int) -> bytes:
    """Return the side stream of classes (blocks,) and frequencies (CLASSES, CONTEXTS, STRIDE)."""
    kernels = compiled.load("frequencies")
    if kernels is None:
        encoder = RangeEncoder()
        pass_side(encoder, len(classes), tokens, (classes, frequencies))
        return encoder.finish()
    # No class costs more than 9 decisions of 12 bits, no frequency more than 16 and 10 raw bits.
    out = np.empty(16 * len(classes) + 32 * frequencies.size, np.uint8)
    tables = frequencies.reshape(-1, STRIDE)
    size = kernels.encode_side(classes, tables, tokens, side_states(), RECIPROCALS, out)
    return out[:size].tobytes()


def decode_side(side: memoryview, blocks: int, tokens: int) -> tuple[AnyArray, Int64]:
    """Return the checked classes and frequencies of a side stream; raises WireFormatError."""
    kernels = compiled.load("frequencies")
    classes: AnyArray = np.zeros(blocks, np.uint8)
    frequencies = np.zeros((CLASSES, CONTEXTS, STRIDE), np.int64)
    if kernels is None:
        decoder = RangeDecoder(bytes(side))
        classes, frequencies = pass_side(decoder, blocks, tokens, None)
        decoder.finish()
    else:
        view, tables = np.frombuffer(side, np.uint8), frequencies.reshape(-1, STRIDE)
        fault = kernels.decode_side(view, classes, tables, tokens, side_states(), RECIPROCALS)
        if fault:
            raise WireFormatError(CORRUPT[fault])
    if not np.isin(frequencies.sum(axis=-1), (0, TOTAL)).all():
        raise WireFormatError(CORRUPT[4])
    return classes, frequencies
