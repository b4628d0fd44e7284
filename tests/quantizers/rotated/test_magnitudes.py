"""Magnitudes: LowPrecision's error, length and deviation are those of drawn messages."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedpaq import Key, LowPrecision, encode
from fedpaq.quantizers.rotated.magnitudes import Magnitudes, binary_entropy, geometric_entropy

RNG = np.random.default_rng(0)
UPDATES = {
    "gaussian": RNG.standard_normal(785).astype(np.float32),
    "sparse": (RNG.standard_normal(20_000) * (RNG.random(20_000) < 0.02)).astype(np.float32),
}


@pytest.mark.parametrize("levels", [5, 40, 160])
@pytest.mark.parametrize("name", UPDATES)
def test_expectations_are_those_of_draws(name, levels):
    update, draws = UPDATES[name], 200
    exact = update.astype(np.float64)
    norm = float(np.linalg.norm(exact))
    keys = [Key(seed=0, client=client) for client in range(draws)]
    messages = LowPrecision(levels).quantize_batch(np.broadcast_to(update, (draws, update.size)), keys)
    errors = [((message.dequantize() - exact) ** 2).sum() / norm**2 for message in messages]
    bits = [8 * len(encode(message)) for message in messages]
    found = Magnitudes.of(update, norm).expected(levels)
    # bins are an eighth of an octave wide: the error is known to 2 % beside the standard error of the mean
    assert abs(np.mean(errors) - found.error) < 5 * np.std(errors) / math.sqrt(draws) + 0.02 * found.error
    assert 0.9 < np.mean(bits) / (found.bits + 120) < 1.15  # without clusters the code is at the entropy
    assert 0.4 * found.deviation < np.std(bits) < 1.2 * found.deviation


def test_entropies_worked_by_hand():
    assert binary_entropy(0.5) == 1.0 and binary_entropy(0.0) == 0.0
    assert geometric_entropy(1.0) == 2.0 and geometric_entropy(0.0) == 0.0
