"""Block code in machine code: each step of the encoder against a slow loop or the twin."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codec_cases import gaussian_message, uneven_message
from fedpaq.codec import block_code, tokens
from fedpaq.codec.frequencies import CLASSES, CONTEXTS, STRIDE, normalise
from fedpaq.kernels import numba as compiled

ROWS = {
    "empty blocks": np.zeros(600, np.int8),
    "gaussian": gaussian_message(700, 20).signed_levels,
    "uneven": uneven_message(1100, 500).signed_levels,
    "widest": np.tile(np.array([-32767, 32767, 0, 16, -16, 15], np.int16), 60),
    "a single level": np.array([-1], np.int8),
    "a lane and one": np.arange(65, dtype=np.int8) % 3 - 1,
}


@pytest.mark.parametrize("name", ROWS)
def test_classes_are_bit_lengths_of_sums(name):
    row, kernels = ROWS[name], compiled.load("block_code")
    classes = np.empty(block_code.num_blocks(row.size), np.uint8)
    kernels.classify(row, classes)
    sums = [sum(abs(int(level)) for level in row[start : start + 256]) for start in range(0, row.size, 256)]
    assert classes.tolist() == [total.bit_length() for total in sums] == block_code.classify(row).tolist()


@pytest.mark.parametrize("name", ROWS)
def test_tokens_are_counted_in_the_tables_of_class_and_sign_before(name):
    row, kernels = ROWS[name], compiled.load("block_code")
    classes = block_code.classify(row).astype(np.uint8)
    entries, counts = np.empty(row.size, np.uint16), np.zeros((4, CLASSES * CONTEXTS * STRIDE), np.int64)
    kernels.count_tokens(row, classes, tokens.token_table(), entries, counts)
    for i, level in enumerate(row.tolist()):
        before = int(row[i - 1]) if i % 64 else 0
        context = 0 if before == 0 else 1 if before > 0 else 2
        table = int(classes[i // 256]) * CONTEXTS + context
        assert entries[i] == table * STRIDE + tokens.token_of(level)
    assert np.array_equal(counts.sum(axis=0), np.bincount(entries, minlength=counts.shape[1]))
    lanes = [
        np.bincount(entries[np.arange(row.size) % 256 // 64 == lane], minlength=counts.shape[1]) for lane in range(4)
    ]
    assert np.array_equal(counts, lanes)


@pytest.mark.parametrize("name", ROWS)
def test_raw_bits_written_by_one_are_added_by_the_other(name):
    row, kernels = ROWS[name], compiled.load("block_code")
    out = np.empty(2 * row.size + 1, np.uint8)
    size = kernels.encode_extras(row, out)
    assert out[:size].tobytes() == block_code.encode_extras(row)
    bases = np.array([tokens.base_level(tokens.token_of(int(level))) for level in row])
    slow, fast = bases.astype(np.int64), bases.astype(row.dtype)
    block_code.add_extras(slow, out[:size].tobytes())
    data = np.frombuffer(out[:size].tobytes(), np.uint8)
    assert kernels.add_extras(data, 32767, fast) == 0
    assert np.array_equal(slow, row) and np.array_equal(fast, row)


def test_raw_bits_that_lack_exceed_or_remain_are_faults():
    kernels = compiled.load("block_code")

    def fault(data, limit=32767):
        return kernels.add_extras(np.frombuffer(data, np.uint8), limit, np.array([16, 1, -32], np.int16))

    # 16 has two raw bits and 32 three: five bits in one byte, the other three zero.
    assert fault(b"\x1f") == 0 and fault(b"") == 1 and fault(b"\x3f") == 1 and fault(b"\x1f\x00") == 1
    assert fault(b"\x1f", limit=39) == 0 and fault(b"\x1f", limit=38) == 3


@given(st.lists(st.sampled_from([0, 0, 0, 1, -1, 2, 17, -300, 32767, -32767]), min_size=1, max_size=400))
@settings(max_examples=20, deadline=None)
def test_block_bodies_of_any_levels_are_the_twin_s(levels):
    row = np.array(levels, np.int16)
    classes = block_code.classify(row)
    frequencies = normalise(block_code.count_tokens(row, classes))
    body = block_code.encode(row, 32767)
    slow = block_code.encode_tokens(row, classes, frequencies) + block_code.encode_extras(row)
    assert body.endswith(slow)
    assert np.array_equal(block_code.decode(memoryview(body), row.size, 32767), row)
