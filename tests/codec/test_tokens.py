"""Tokens: the alphabet by definition."""

from __future__ import annotations

import numpy as np

from fedpaq.codec import tokens


def test_tokens_cut_magnitudes_as_four_classes_an_octave():
    classes = {}
    for magnitude in range(1, 32768):
        classes.setdefault(tokens.token_of(magnitude), []).append(magnitude)
    for token, members in classes.items():
        assert members == list(range(members[0], members[0] + (1 << tokens.extra_bits(token))))
        assert tokens.base_level(token) == members[0] and tokens.base_level(token + 1) == -members[0]
        assert tokens.token_of(-members[-1]) == token + 1
    widths = [len(members) for members in classes.values()]
    assert widths == [1] * 15 + [2**bits for bits in range(2, 13) for _ in range(4)]


def test_the_table_of_tokens_is_token_of_for_every_level():
    levels = np.arange(-32767, 32768)
    expected = [tokens.token_of(level) for level in levels.tolist()]
    assert tokens.token_table()[levels % 65536].tolist() == expected
    assert [tokens.base_level(token) for token in range(tokens.NUM_TOKENS)] == tokens.base_table()[:119].tolist()
