"""What a quantizer may be handed: any layout and number type means its float32, or is refused by name."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedpaq import Identity, Key, LowPrecision
from fedpaq.errors import ConfigError, FedPAQError, NonFiniteUpdateError
from fedpaq.kernels import numba as compiled
from fedpaq.quantizers import Quantizer, RawMessage

KEY = Key(seed=3, round=2, client=1)


QUANTIZERS = [LowPrecision(1), LowPrecision(7, 16), LowPrecision(300), Identity()]


PLAIN = np.random.default_rng(5).standard_normal(60).astype(np.float32)


def test_numpy_integers_make_the_quantizer_that_python_integers_make():
    for levels in (np.int8(100), np.int16(200), np.uint16(300), np.int64(32767)):
        made, plain = LowPrecision(levels, np.int8(50)), LowPrecision(int(levels), 50)
        assert made == plain and repr(made) == repr(plain) and made.name == plain.name
        # Squaring in eight or sixteen bits would overflow, to a bound below zero.
        assert made.variance_bound(10_000) == plain.variance_bound(10_000) > 0
        assert made.quantize(PLAIN, key=KEY) == plain.quantize(PLAIN, key=KEY)


@pytest.mark.parametrize("seed", [np.int8(5), np.int32(5), np.int64(5), np.uint64(5)])
@pytest.mark.parametrize("numba", [True, False])
def test_a_key_of_numpy_integers_names_the_same_stream(seed, numba, monkeypatch):
    expected = LowPrecision(2).quantize(PLAIN, key=Key(seed=5, round=1, client=2))
    if not numba:
        monkeypatch.setattr(compiled, "load", lambda name: None)
    key = Key(seed=seed, round=np.int16(1), client=np.uint8(2))
    assert LowPrecision(2).quantize(PLAIN, key=key) == expected


@pytest.mark.parametrize("bad", [0, -3, 2**62 + 1, 2**64, 1.0, True, "8"])
def test_a_bucket_no_payload_can_name_is_refused(bad):
    with pytest.raises(ConfigError, match=r"^bucket_size=.*; choose 1\.\.4611686018427387904$"):
        LowPrecision(1, bad)


def test_the_widest_bucket_is_one_norm():
    wide, none = (LowPrecision(3, size).quantize(PLAIN, key=KEY) for size in (2**62, None))
    assert np.array_equal(wide.signed_levels, none.signed_levels) and np.array_equal(wide.norms, none.norms)


@pytest.mark.parametrize("dimension", [0, -1, 2.5])
def test_a_bound_needs_a_dimension(dimension):
    with pytest.raises(ConfigError, match=f"dimension={dimension} is .*; choose an integer >= 1"):
        LowPrecision(1).variance_bound(dimension)


def test_the_bound_falls_with_levels_and_grows_with_the_dimension():
    bounds = [[LowPrecision(levels).variance_bound(p) for p in (1, 10, 1000, 10**6)] for levels in (1, 2, 9, 500)]
    assert np.all(np.diff(bounds, axis=0) < 0) and np.all(np.diff(bounds, axis=1) > 0)
    # The two forms meet where s = sqrt(p).
    assert LowPrecision(10).variance_bound(100) == 1.0
    assert math.isclose(LowPrecision(11).variance_bound(100), 100 / 121)
    assert math.isclose(LowPrecision(9).variance_bound(100), 10 / 9)


def test_a_bucket_wider_than_the_update_promises_no_more_than_none():
    assert LowPrecision(2, 10**9).variance_bound(400) == LowPrecision(2).variance_bound(400) == 10.0


@pytest.mark.parametrize("quantizer", QUANTIZERS, ids=lambda quantizer: quantizer.name)
def test_the_package_s_quantizers_have_the_members_of_the_protocol(quantizer):
    assert isinstance(quantizer, Quantizer) and not isinstance(RawMessage(PLAIN), Quantizer)


def test_errors_of_quantizers_are_errors_of_the_package_and_of_python():
    for bad, kind in (((np.array(["a"]),), ConfigError), ((np.array([np.nan]),), NonFiniteUpdateError)):
        with pytest.raises(kind) as caught:
            LowPrecision(1).quantize(*bad, key=KEY)
        assert isinstance(caught.value, FedPAQError) and isinstance(caught.value, ValueError)


def test_levels_worked_by_hand():
    """x = (3, -4), norm 5, s = 10: shares 6 and 8 are whole, so no draw can change them."""
    for client in range(50):
        message = LowPrecision(10).quantize([3.0, -4.0], key=Key(seed=0, client=client))
        assert message.signed_levels.tolist() == [6, -8] and message.norms.tolist() == [5.0]
        assert message.dequantize().tolist() == [3.0, -4.0]


def test_a_share_between_levels_goes_up_as_often_as_it_should():
    """x = (3, -4), s = 1: P(level 1) is 0.6 and 0.8; five standard errors of 20,000 draws each."""
    trials = 20_000
    rows = np.tile(np.array([3.0, -4.0], np.float32), (trials, 1))
    batch = LowPrecision(1).quantize_batch(rows, [Key(seed=9, client=client) for client in range(trials)])
    shares = np.abs(batch.signed_levels).mean(axis=0)
    for share, expected in zip(shares, (0.6, 0.8), strict=True):
        assert abs(share - expected) < 5 * math.sqrt(expected * (1 - expected) / trials)
    # Coordinates round independently: the share of both up is the product (standard error as above).
    both = np.abs(batch.signed_levels).prod(axis=1).mean()
    assert abs(both - 0.48) < 5 * math.sqrt(0.48 * 0.52 / trials)


@pytest.mark.parametrize("quantizer", QUANTIZERS, ids=lambda quantizer: quantizer.name)
def test_the_opposite_update_gives_the_opposite_message(quantizer):
    there, back = (quantizer.quantize(sign * PLAIN, key=KEY).dequantize() for sign in (1, -1))
    assert np.array_equal(there, -back)


@pytest.mark.parametrize("exponent", [-60, -3, 1, 40])
def test_a_power_of_two_scales_norms_and_leaves_levels(exponent):
    message, scaled = (LowPrecision(5, 16).quantize(x, key=KEY) for x in (PLAIN, np.ldexp(PLAIN, exponent)))
    assert np.array_equal(message.signed_levels, scaled.signed_levels)
    assert np.array_equal(np.ldexp(message.norms, exponent), scaled.norms)


def test_every_estimate_lies_within_one_unit_of_its_coordinate():
    for levels in (1, 5, 300):
        message = LowPrecision(levels).quantize(PLAIN, key=KEY)
        unit = float(message.norms[0]) / levels
        # The estimate is rounded once to float32, from at most the norm.
        assert np.abs(message.dequantize() - PLAIN).max() < unit * (1 + 1e-6) + float(message.norms[0]) * 2**-24


def test_zeros_among_others_stay_zeros():
    update = PLAIN.copy()
    update[::3] = 0.0
    update[1::9] = -0.0
    for quantizer in QUANTIZERS:
        assert not quantizer.quantize(update, key=KEY).dequantize()[::3].any()


def test_a_bucket_of_zeros_has_norm_zero_and_spoils_no_other():
    update = PLAIN.copy()
    update[16:32] = 0.0
    message = LowPrecision(4, 16).quantize(update, key=KEY)
    assert message.norms[1] == 0.0 and np.all(message.norms[[0, 2, 3]] > 0)
    whole = LowPrecision(4, 16).quantize(PLAIN, key=KEY)
    outside = np.r_[0:16, 32:60]
    assert np.array_equal(message.signed_levels[outside], whole.signed_levels[outside])
