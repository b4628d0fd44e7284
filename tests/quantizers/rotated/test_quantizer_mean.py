"""Rotated is unbiased on every kind of update; ``benchmarks/rotated_bias.py`` does this with 4,000 draws.

With errors e_1 .. e_N of covariance C and no bias, ||mean e||^2 - tr(C) / N has mean 0 and the standard error
sqrt(2 tr(C^2)) / N; tr(C^2) is the mean of <e_i, e_j>^2. Five standard errors are allowed.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedpaq import Key
from fedpaq.quantizers.rotated import quantizer as rotated_module
from fedpaq.quantizers.rotated.quantizer import Rotated
from rotated_cases import kinds

DIMENSION = 2000


def check_mean(quantizer, update, draws):
    """Fail unless the mean of the draws is the update."""
    keys = [Key(seed=7, client=client) for client in range(draws)]
    messages = quantizer.quantize_batch(np.broadcast_to(update, (draws, update.size)), keys)
    exact = update.astype(np.float64)
    errors, energy = np.stack([message.dequantize() for message in messages]) - exact, exact @ exact
    mean = errors.mean(axis=0)
    excess = mean @ mean - errors.var(axis=0, ddof=1).sum() / draws
    spread = math.sqrt(2 * np.mean((errors[::2] * errors[1::2]).sum(axis=1) ** 2)) / draws
    assert excess < 5 * spread + 1e-12 * energy
    along = errors @ exact / energy
    assert abs(along.mean()) < 5 * along.std() / math.sqrt(draws) + 1e-6
    assert (errors**2).sum() / draws <= quantizer.variance_bound(update.size) * energy


@pytest.mark.parametrize("name", kinds(DIMENSION))
@pytest.mark.parametrize("rate", [0.05, 0.3, 1.0])
def test_the_mean_of_many_rotations_is_the_update(rate, name, monkeypatch):
    monkeypatch.setattr(rotated_module, "better_levels", lambda *arguments: None)
    check_mean(Rotated(rate), kinds(DIMENSION)[name], 600)


@pytest.mark.parametrize("name", kinds(DIMENSION))
@pytest.mark.parametrize("quantizer", [Rotated(2.0), Rotated(payload_bytes=90)], ids=lambda q: q.name)
def test_the_mean_of_many_messages_is_the_update(quantizer, name):
    check_mean(quantizer, kinds(DIMENSION)[name], 200)


def test_a_biased_quantizer_would_be_found():
    class Shrunk(Rotated):
        def quantize_batch(self, updates, keys):
            return super().quantize_batch(0.97 * np.asarray(updates), keys)

    with pytest.raises(AssertionError):
        check_mean(Shrunk(1.0), kinds(DIMENSION)["gaussian"], 600)
