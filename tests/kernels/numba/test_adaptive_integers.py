"""The adaptive integer model in machine code: contexts, probabilities and learning are the twin's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpaq.codec import adaptive_integers as twin
from fedpaq.kernels import numba as compiled


class Listening:
    """A coder that notes the probabilities it is given."""

    def __init__(self):
        self.probabilities = []

    def code(self, probability, bit):
        self.probabilities.append(probability)
        return bit


@given(st.integers(0, 200) | st.integers(0, 2**44))
def test_a_local_mean_has_the_twin_s_order_and_row(mean):
    assert compiled.load("adaptive_integers").locate.py_func(mean) == twin.locate(mean)


@pytest.mark.parametrize("weight", [4, 16])
@pytest.mark.parametrize("chance", [0.0, 0.01, 0.5, 1.0])
def test_a_context_gives_the_twin_s_probabilities_and_learns_as_it_does(weight, chance):
    """2,000 decisions from several states: long enough for counts to be halved twice."""
    kernels, rng = compiled.load("adaptive_integers"), np.random.default_rng(weight)
    for state in {int(one) for one in twin.prior_table(weight)[::97]}:
        coder, states, mine = Listening(), [state], state
        for number, bit in enumerate((rng.random(2000) < chance).tolist()):
            twin.code_bit(coder, states, 0, int(bit))
            assert kernels.probability_of.py_func(mine, twin.RECIPROCALS) == coder.probabilities[number]
            mine = kernels.learn.py_func(mine, int(bit))
            assert mine == states[0]
