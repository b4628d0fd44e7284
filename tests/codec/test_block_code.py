"""The block code, its tokens and its frequency tables: the compiled bytes are the twin's."""

from __future__ import annotations

import numpy as np

from codec_cases import gaussian_message, uneven_message
from fedpaq.codec import block_code, tokens
from fedpaq.kernels import numba as compiled

CASES = [
    maker(dimension, levels, 40)
    for maker in (gaussian_message, uneven_message)
    for dimension in (1, 63, 64, 65, 256, 257, 900)
    for levels in (1, 15, 16, 127, 128, 32767)
]


def test_the_compiled_bytes_are_the_twins_and_both_read_them(monkeypatch):
    bodies = [block_code.encode(message.signed_levels, message.levels) for message in CASES]
    for _ in range(2):
        for message, body in zip(CASES, bodies, strict=True):
            decoded = block_code.decode(memoryview(body), message.dimension, message.levels)
            assert decoded.dtype == message.signed_levels.dtype
            assert np.array_equal(decoded, message.signed_levels)
        monkeypatch.setattr(compiled, "load", lambda name: None)
    assert bodies == [block_code.encode(message.signed_levels, message.levels) for message in CASES]


def test_gaussian_levels_cost_their_entropy():
    levels = gaussian_message(300_000, 548).signed_levels
    counts = np.unique(levels, return_counts=True)[1]
    entropy = float((counts * np.log2(levels.size / counts)).sum()) / 8
    assert len(block_code.encode(levels, 548)) <= 1.003 * entropy


def test_every_level_has_one_token_and_its_raw_bits_name_it():
    table = tokens.token_table()
    for level in [*range(-300, 301), -32767, 32767, 12345, -16384]:
        token = tokens.token_of(level)
        assert table[level % 65536] == token
        rest = abs(level - tokens.base_level(token))
        assert rest < 1 << tokens.extra_bits(token)
    assert table.max() == tokens.NUM_TOKENS - 1
