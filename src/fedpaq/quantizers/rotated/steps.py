"""Steps: the side stream, which carries the scales of all blocks but the first.

A scale is an integer (``scale_index``); the stream holds the zigzag differences from the one before, adaptive
integers of weight 4 whose local mean is that of the last four. ``pass_steps`` runs either way.
Twin: ``fedpaq.kernels.numba.steps``.
"""

import numpy as np

from fedpaq.arrays import Int64
from fedpaq.codec.adaptive_integers import RECIPROCALS, code_integer, prior_table
from fedpaq.codec.frequencies import SIDE_WINDOW, unzigzag, zigzag
from fedpaq.codec.range_coder import RangeDecoder, RangeEncoder
from fedpaq.errors import WireFormatError
from fedpaq.kernels import numba as compiled

WEIGHT = 4
BYTES_PER_STEP = 4  # room to start with; scales that jump need more
CORRUPT = {
    1: "the side stream leaves the coder's interval; the payload is corrupt",
    2: "a scale of the payload is not finite and positive; it is corrupt",
    3: "the side stream does not end where its last symbol does; the payload is corrupt",
}


def pass_steps(coder: RangeEncoder | RangeDecoder, count: int, steps: list[int] | None) -> list[int]:
    """Pass differences through the coder and return them."""
    states = [int(state) for state in prior_table(WEIGHT)]
    window = [0] * SIDE_WINDOW
    for step in range(count):
        told = None if steps is None else zigzag(steps[step])
        window.append(code_integer(coder, states, 0, 2 * sum(window[-SIDE_WINDOW:]), told))
    return [unzigzag(code) for code in window[SIDE_WINDOW:]]


def encode(indices: Int64) -> bytes:
    """Return the side stream of scales."""
    kernels = compiled.load("steps")
    if kernels is None:
        encoder = RangeEncoder()
        pass_steps(encoder, len(indices) - 1, np.diff(indices).tolist())
        return encoder.finish()
    room = BYTES_PER_STEP * len(indices) + 16
    while True:
        out = np.empty(room, np.uint8)
        size = kernels.encode(indices, prior_table(WEIGHT), RECIPROCALS, out)
        if size <= room:
            return out[:size].tobytes()
        room = size  # the kernel counts on, but writes nothing beyond its part


def decode(side: memoryview, first: int, most: int, count: int) -> Int64:
    """Return ``count`` scales, each in 1..most, of which the first is known; raises WireFormatError."""
    kernels = compiled.load("steps")
    indices = np.full(count, first, np.int64)
    fault = 0 if 1 <= first <= most else 2
    if kernels is None and not fault:
        decoder = RangeDecoder(bytes(side))
        found = np.cumsum([first, *pass_steps(decoder, count - 1, None)], dtype=object)
        decoder.finish()
        fault = 0 if min(found) >= 1 and max(found) <= most else 2
        indices = indices if fault else found.astype(np.int64)
    elif not fault:
        view = np.frombuffer(side, np.uint8)
        fault = kernels.decode(view, most, prior_table(WEIGHT), RECIPROCALS, indices)
    if fault:
        raise WireFormatError(CORRUPT[fault])
    return indices
