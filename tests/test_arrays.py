"""Arrays: every short name is the type it says."""

from typing import Any, get_args

import numpy as np

from fedpaq import arrays


def test_a_name_is_an_array_of_its_kind():
    names = [name for name in vars(arrays) if name[0].isupper() and name not in ("Any", "AnyArray", "Bools")]
    assert len(names) == 8
    for name in names:
        assert get_args(get_args(getattr(arrays, name))[1])[0] is getattr(np, name.lower())
    assert get_args(get_args(arrays.Bools)[1])[0] is np.bool_
    assert get_args(get_args(arrays.AnyArray)[1])[0] is Any
