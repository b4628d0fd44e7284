"""Rotated: unbiased on every kind of update, near the limit, no longer than promised, twins to the bit."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedpaq import ConfigError, Key, NonFiniteUpdateError
from fedpaq.kernels import numba as compiled
from fedpaq.quantizers import check_quantizer
from fedpaq.quantizers.rotated.quantizer import Rotated
from rotated_cases import bytes_of, kinds

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("dimension", [1, 2, 3, 40, 785, 4096, 20_000])
@pytest.mark.parametrize("bits", [0.05, 0.4, 1.0, 5.0])
def test_kernels_make_the_messages_of_their_twins(dimension, bits, monkeypatch):
    update = (RNG.standard_normal(dimension) * np.exp(-3 * np.arange(dimension) / dimension)).astype(np.float32)
    key = Key(seed=2**40 + 1, round=7, client=3)
    fast = Rotated(bits).quantize(update, key=key)
    estimate = fast.dequantize()
    monkeypatch.setattr(compiled, "load", lambda name: None)
    slow = Rotated(bits).quantize(update, key=key)
    assert slow == fast
    assert np.array_equal(slow.dequantize(), estimate)


@pytest.mark.parametrize(("rate", "ideal"), [(0.1, 1.48), (0.5, 1.61), (1.0, 1.60), (2.0, 1.46), (4.0, 1.43)])
def test_error_is_within_8_percent_of_the_best_scalar_quantizer(rate, ideal):
    update = np.random.default_rng(1).standard_normal(92_027).astype(np.float32)
    energy, found = float(update @ update), []
    for client in range(6):
        message = Rotated(rate).quantize(update, key=Key(seed=0, client=client))
        real = 8 * bytes_of(message) / update.size
        found.append(float(((message.dequantize() - update) ** 2).sum()) / energy * (4**real - 1))
    assert np.mean(found) < 1.08 * ideal


@pytest.mark.parametrize("most", [24, 31, 100, 700])
def test_no_payload_is_longer_than_promised_and_few_bytes_are_wasted(most):
    for p in (1, 3, 64, 785, 6000):
        for name, update in kinds(p).items():
            for client in range(4):
                message = Rotated(payload_bytes=most).quantize(update, key=Key(seed=1, client=client))
                assert bytes_of(message) <= most, (p, name)
    assert bytes_of(message) >= 0.9 * most


def test_bits_are_met_on_average():
    update = RNG.standard_normal(50_000).astype(np.float32)
    for bits in (0.03, 0.2, 1.0, 3.0):
        sizes = [bytes_of(Rotated(bits).quantize(update, key=Key(seed=0, client=c))) for c in range(5)]
        assert math.isclose(np.mean(sizes), bits * 50_000 / 8, rel_tol=0.02)


@pytest.mark.parametrize("scale", [1e-44, 1e-30, 1e30, 1e35])
def test_any_scale_of_update_comes_back(scale):
    update = (RNG.standard_normal(700) * scale).astype(np.float32)
    estimate = Rotated(bits=6).quantize(update, key=Key(seed=0)).dequantize().astype(np.float64)
    exact = update.astype(np.float64)
    assert ((estimate - exact) ** 2).sum() < 0.01 * (exact**2).sum() + 700 * 1.5e-45**2


def test_zeros_stay_zeros():
    assert not Rotated(1.0).quantize(np.zeros(100, np.float32), key=Key(seed=0)).dequantize().any()


def test_updates_that_are_not_finite_are_refused_by_name():
    for value in (np.nan, np.inf):
        with pytest.raises(NonFiniteUpdateError, match=r"update\[1\]"):
            Rotated(1.0).quantize(np.array([1.0, value], np.float32), key=Key(seed=0))
    with pytest.raises(NonFiniteUpdateError, match="exceed"):
        Rotated(0.01).quantize(np.full(20_000, 1e36, np.float32), key=Key(seed=0))


WRONG = [{}, {"bits": 1.0, "payload_bytes": 99}, {"bits": 0}, {"bits": 99}, {"bits": math.nan}, {"bits": "1"}]
WRONG += [{"bits": 1.0, "blocks": 0}, {"bits": 1.0, "blocks": 1.5}]


@pytest.mark.parametrize("wrong", [*WRONG, {"payload_bytes": 3}])
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(ConfigError):
        Rotated(**wrong)


@pytest.mark.parametrize(
    "quantizer", [Rotated(0.05), Rotated(2.0), Rotated(payload_bytes=60), Rotated(0.2, blocks=1)], ids=lambda q: q.name
)
def test_rotated_is_a_quantizer(quantizer):
    check_quantizer(quantizer, trials=200)


def test_one_block_spreads_the_error_evenly_and_blocks_of_least_error_do_not():
    update = RNG.standard_normal(32_768).astype(np.float32)
    update[:16_384] *= 8  # eight times the root mean square of the other half
    shares = {}
    for blocks in (None, 1):
        errors = np.zeros(update.size)
        for client in range(20):
            message = Rotated(0.1, blocks=blocks).quantize(update, key=Key(seed=0, client=client))
            assert blocks is None or message.blocks.count == blocks
            errors += (message.dequantize() - update) ** 2
        shares[blocks] = errors[:16_384].sum() / errors.sum()
    assert abs(shares[1] - 0.5) < 0.02  # the standard error of 20 draws is below 0.002
    assert shares[None] > 0.8  # in proportion to the root mean square: 8 / 9


def test_blocks_that_do_not_suit_the_update_are_refused():
    update = RNG.standard_normal(5000).astype(np.float32)
    assert Rotated(2.0, blocks=3).quantize(update, key=Key(seed=0)).blocks.count == 3
    for wrong in (Rotated(2.0, blocks=60), Rotated(0.05, blocks=4)):  # some would be empty; too few bits for each
        with pytest.raises(ConfigError, match="blocks="):
            wrong.quantize(update, key=Key(seed=0))


@pytest.mark.parametrize("bad", [True, "1", 1j, np.array(1.0), [1.0], float("nan")])
def test_bits_that_are_not_a_number_are_refused(bad):
    with pytest.raises(ConfigError, match=r"^bits=.* is out of range; choose more than 0 and at most 12"):
        Rotated(bits=bad)
