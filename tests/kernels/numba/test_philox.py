"""Philox in machine code: words of a group, one by one."""

from __future__ import annotations

import numpy as np
import pytest

from fedpaq import Key
from fedpaq.kernels import numba as compiled
from fedpaq.randomness import Purpose, philox, words_numpy


@pytest.mark.parametrize("index", [0, 63, 64, 255, 256, 2**34 - 1, 2**34, 2**38 + 77])
def test_a_draw_is_the_word_of_the_block_the_docstring_names(index):
    """i = 256 g + 64 w + l is word w of block 64 g + l, the block's high half beside the purpose."""
    key = Key(seed=2**40 + 9, round=7, client=2**31)
    group, within = divmod(index, 256)
    word, lane = divmod(within, 64)
    block = 64 * group + lane
    counter = np.array([block % 2**32, 7, 2**31, (Purpose.CHECK << 24) + block // 2**32], np.uint32)
    expected = philox(counter, np.array([9, 2**8], np.uint32))[word]
    assert words_numpy(Purpose.CHECK, key, index, 1).tolist() == [expected]
    out = np.empty(1, np.uint32)
    compiled.load("philox").words(int(Purpose.CHECK), key.seed, key.round, key.client, index, out)
    assert out.tolist() == [expected]
    assert compiled.load("philox").word(int(Purpose.CHECK), key.seed, key.round, key.client, index) == expected
