"""The range coder in machine code writes the twin's bytes, reads them, and refuses what no encoder wrote."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from fedpaq.codec.range_coder import RangeDecoder, RangeEncoder
from fedpaq.errors import WireFormatError
from fedpaq.kernels.numba import range_coder as kernels


@njit
def encode(probabilities, bits, widths, values, out):
    """Alternate one decision and one run of raw bits; return the size."""
    low, size, at = 0, kernels.TOP, 0
    for i in range(bits.size):
        low, size, at = kernels.put_bit(low, size, at, out, probabilities[i], bits[i])
        low, size, at = kernels.put_raw(low, size, at, out, widths[i], values[i])
    return kernels.put_end(low, size, at, out)


@njit
def decode(body, probabilities, widths, bits, values):
    """Undo ``encode``; return whether the body is one that an encoder wrote."""
    low, size, code, at = kernels.get_start(body)
    for i in range(bits.size):
        low, size, code, at, bits[i] = kernels.get_bit(low, size, code, at, body, probabilities[i])
        low, size, code, at, values[i] = kernels.get_raw(low, size, code, at, body, widths[i])
        if values[i] < 0:
            return False
    return kernels.ends_well(low, size, code, at, body)


def sequence(seed, count):
    rng = np.random.default_rng(seed)
    probabilities = rng.choice([16, 300, 32768, 65000, 65520], count)
    bits = (rng.integers(0, 65536, count) < probabilities).astype(np.int64)
    widths = rng.choice([0, 0, 1, 15, 16, 17, 38], count)
    return probabilities, bits, widths, np.array([int(rng.integers(0, 2**width)) for width in widths.tolist()])


def by_the_twin(probabilities, bits, widths, values):
    encoder = RangeEncoder()
    for probability, bit, width, value in zip(probabilities, bits, widths, values, strict=True):
        encoder.code(int(probability), int(bit))
        encoder.raw(int(width), int(value))
    return encoder.finish()


@pytest.mark.parametrize("seed", range(20))
def test_bytes_are_the_twin_s_and_come_back(seed):
    case = sequence(seed, [1, 2, 7, 100, 1000][seed % 5])
    probabilities, bits, widths, values = case
    out = np.zeros(10_000, np.uint8)
    body = out[: encode(probabilities, bits, widths, values, out)].tobytes()
    assert body == by_the_twin(*case)
    read_bits, read_values = np.empty_like(bits), np.empty_like(values)
    view = np.frombuffer(body, np.uint8)
    assert decode(view, probabilities, widths, read_bits, read_values)
    assert np.array_equal(read_bits, bits) and np.array_equal(read_values, values)


def test_a_room_too_small_is_not_left_and_the_size_is_told():
    probabilities, bits, widths, values = sequence(3, 200)
    whole = np.zeros(10_000, np.uint8)
    size = encode(probabilities, bits, widths, values, whole)
    room = np.full(size, 0xAA, np.uint8)
    assert encode(probabilities, bits, widths, values, room[: size // 2]) >= size // 2
    assert (room[size // 2 :] == 0xAA).all()


def read_by_the_twin(body, probabilities, widths):
    decoder = RangeDecoder(body)
    try:
        found = [(decoder.code(int(p)), decoder.raw(int(w))) for p, w in zip(probabilities, widths, strict=True)]
        decoder.finish()
    except WireFormatError:
        return None
    return found


@pytest.mark.parametrize("length", [0, 1, 3, 6, 7, 20])
def test_random_bytes_are_read_or_refused_by_both_alike(length):
    rng, outcomes = np.random.default_rng(length), set()
    for _ in range(200):
        probabilities, bits, widths, values = sequence(int(rng.integers(1000)), max(1, length // 2))
        body = rng.integers(0, 256, length).astype(np.uint8)
        read = decode(body, probabilities, widths, bits, values)
        expected = read_by_the_twin(body.tobytes(), probabilities, widths)
        assert read == (expected is not None)
        if read:
            assert list(zip(bits.tolist(), values.tolist(), strict=True)) == expected
            assert by_the_twin(probabilities, bits, widths, values) == body.tobytes()  # one encoding each
        outcomes.add(read)
    assert False in outcomes or length <= 1
