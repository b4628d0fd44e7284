"""Random sparsification: keep each coordinate with probability ``keep`` and divide it by that; unbiased.

A payload holds a 64-bit stream number, which says what was kept, and the kept values: no positions.
"""

import struct
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedpaq.codec import Code
from fedpaq.errors import ConfigError, WireFormatError
from fedpaq.quantizers.update import as_float32, as_vector, refuse_non_finite
from fedpaq.randomness import Key, Keys, Purpose, uniforms, words

FRONT = struct.Struct("<Qd")  # stream number, keep


@dataclass(frozen=True, eq=False)
class SparseMessage:
    code: ClassVar[str] = "random-sparse"  # the name its code is registered under
    stream: int
    keep: float
    dimension: int
    values: np.ndarray  # (number kept,) float32, already divided by keep

    def positions(self):
        return np.flatnonzero(uniforms(Purpose.CHECK, Key(seed=self.stream), self.dimension) < self.keep)

    def dequantize(self):
        total = np.zeros(self.dimension)
        self.add_to(total)
        return total.astype(np.float32)

    def add_to(self, total, weight=1.0):
        total[self.positions()] += weight * self.values.astype(np.float64)

    def __eq__(self, other):
        return isinstance(other, SparseMessage) and pack([self]) == pack([other])


def pack(messages):
    return [(8, FRONT.pack(each.stream, each.keep) + each.values.astype("<f4").tobytes()) for each in messages]


def unpack(header):
    if len(header.body) < FRONT.size or len(header.body) % 4:
        raise WireFormatError(f"a body of {len(header.body)} bytes is not a stream number and float32 values")
    values = np.frombuffer(header.body[FRONT.size :], "<f4").astype(np.float32)
    message = SparseMessage(*FRONT.unpack_from(header.body), header.dimension, values)
    if not (0 < message.keep <= 1 and np.isfinite(values).all() and len(message.positions()) == len(values)):
        raise WireFormatError("the values of a sparse payload do not fit its stream; it is corrupt")
    return message


@dataclass(frozen=True)
class RandomSparse:
    wire_code: ClassVar[Code] = Code(names={8: "random-sparse"}, pack=pack, unpack=unpack)
    keep: float = 0.01

    def __post_init__(self):
        if not 0 < self.keep <= 1:
            raise ConfigError(f"keep={self.keep} is not a probability; choose a number in (0, 1]")

    name = property(lambda self: f"random-sparse({self.keep:g})")

    def variance_bound(self, dimension):
        return 1 / self.keep - 1

    def quantize(self, update, *, key):
        vector = as_vector(update)
        refuse_non_finite(vector[None] / self.keep, vector[None], Keys.of([key]))
        stream = int(words(Purpose.CHECK, key, 2).view("<u8")[0])
        whole = SparseMessage(stream, self.keep, vector.size, vector)
        return replace(whole, values=vector[whole.positions()] / np.float32(self.keep))

    def quantize_batch(self, updates, keys):
        return [self.quantize(update, key=key) for update, key in zip(as_float32(updates), keys, strict=True)]
