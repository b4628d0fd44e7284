"""Rotated: unbiased on every kind of update, near the limit, no longer than promised, twins to the bit."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedpaq import ConfigError, Key, NonFiniteUpdateError
from fedpaq.kernels import numba as compiled
from fedpaq.quantizers import QuantizedMessage, check_quantizer
from fedpaq.quantizers.rotated import quantizer as rotated_module
from fedpaq.quantizers.rotated.allocation import allocate, candidates, densities, half_steps, share
from fedpaq.quantizers.rotated.message import RotatedMessage, round_scales
from fedpaq.quantizers.rotated.quantizer import Rotated, payload_size, with_content
from fedpaq.quantizers.rotated.rotation import Blocks, rotate_back_numpy, rotate_numpy
from fedpaq.quantizers.rotated.rounding import round_blocks, sum_cells

RNG = np.random.default_rng(0)


def bytes_of(message):
    return payload_size(with_content(message) if isinstance(message, RotatedMessage) else message)


def kinds(p):
    """Updates that rotations and roundings may find hard."""
    rng = np.random.default_rng(p)
    sparse = np.where(rng.random(p) < 0.02, rng.standard_normal(p), 0.0)
    sparse[p // 2] = 1.0
    return {
        "gaussian": rng.standard_normal(p),
        "heavy": rng.standard_t(2, p) ** 3,
        "one-hot": np.eye(1, p, p // 3)[0],
        "two-valued": np.where(rng.random(p) < 0.5, -1.0, 1.0),
        "constant": np.ones(p),
        "sparse": sparse,
        "uneven": rng.standard_normal(p) * np.exp(-4 * np.arange(p) / p),
    }


@pytest.mark.parametrize(
    ("dimension", "count"), [(1, 1), (3, 1), (33, 1), (300, 1), (785, 2), (5000, 1), (20_001, 5)]
)
def test_rotation_keeps_norms_and_its_back_is_its_transpose(dimension, count):
    blocks, key = Blocks(dimension, count), Key(seed=5, round=3, client=9)
    update = RNG.standard_normal(dimension).astype(np.float32)
    ones = np.ones(count, np.float32)
    rotated = rotate_numpy(update, blocks, ones, key).astype(np.float64)
    assert math.isclose((rotated**2).sum(), (update.astype(float) ** 2).sum() * blocks.growth**2, rel_tol=1e-5)
    levels = RNG.integers(-3, 4, blocks.padded).astype(np.int16)
    back = rotate_back_numpy(levels, blocks, np.ones(count), key).astype(np.float64)
    there, here = rotated.reshape(-1) @ levels, back @ update
    assert abs(there - here) <= 1e-4 * blocks.growth * np.linalg.norm(levels)


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


def test_rounding_by_rank_sends_the_largest_and_their_ties():
    values = np.array([[0.5, -3.0, 2.0, -2.0, 0.0, 1.0, 0.0, 0.0]], np.float32)
    for guess in (0.0, 1.5, 100.0):
        rounded = round_blocks(values, np.array([2]), np.array([guess], np.float32))
        assert rounded.levels.tolist() == [0, -1, 1, -1, 0, 0, 0, 0]
        assert rounded.products[0] == 7.0
        assert rounded.counts[0] == 3
    assert round_blocks(values, np.array([0]), np.zeros(1, np.float32)).counts[0] == 0
    nothing_rounds = round_blocks(values, np.array([-1]), np.array([50.0], np.float32))
    assert nothing_rounds.levels.tolist() == [0, -1, 0, 0, 0, 0, 0, 0]


def test_shares_spend_the_bits_and_follow_the_root_mean_square():
    energies = np.array([1.0, 4.0, 0.0, 1e-6])
    few = np.arcsinh(share(energies, 1024, 40.0)) / math.log(2)
    assert math.isclose(few.sum() * 1024, 40.0, rel_tol=1e-3)
    assert math.isclose(few[1] / few[0], 2.0, rel_tol=1e-3)
    many = np.arcsinh(share(energies[:2], 1024, 16_384.0)) / math.log(2)
    assert math.isclose(many[1] - many[0], 1.0, rel_tol=1e-3)  # an octave of amplitude is a bit
    assert few[2] == 0


def test_the_curve_is_that_of_the_issue():
    rates = np.array([0.01, 0.03, 0.1, 0.25, 0.5, 1.0])
    assert np.allclose(half_steps(rates), [3.36, 3.00, 2.54, 2.12, 1.73, 1.21], atol=0.01)
    assert np.allclose(densities(rates[:3]), [0.00078, 0.00274, 0.01122], rtol=0.01)


def test_uneven_updates_are_cut_into_more_blocks_than_even_ones():
    even, uneven = np.ones(1000), np.exp(-np.arange(1000) / 50)
    assert allocate(uneven, 64_000, 20_000).blocks.count > allocate(even, 64_000, 20_000).blocks.count
    assert allocate(uneven, 64_000, 20_000).error < allocate(even, 64_000, 20_000).error
    assert all(blocks.fits for p in (1, 2, 785, 92_027, 10**9) for blocks in candidates(p, 1e4))


@pytest.mark.parametrize("rate", [0.05, 0.3, 1.0])
def test_the_mean_of_many_draws_is_the_update(rate, monkeypatch):
    # ||mean error||^2 is 1/draws of the variance, to sqrt(2 sum v^2) / sum v; five of those are allowed.
    monkeypatch.setattr(rotated_module, "better_levels", lambda *arguments: None)
    draws, p = 600, 2000
    for name, update in kinds(p).items():
        update = update.astype(np.float32)
        keys = [Key(seed=7, client=client) for client in range(draws)]
        messages = Rotated(rate).quantize_batch(np.broadcast_to(update, (draws, p)), keys)
        errors = np.stack([message.dequantize() for message in messages]).astype(np.float64) - update
        variances = errors.var(axis=0)
        bias = draws * (errors.mean(axis=0) ** 2).sum() / variances.sum()
        assert bias < 1 + 5 * math.sqrt(2 * (variances**2).sum()) / variances.sum() + 1e-9, name
        along = errors @ update
        assert abs(along.mean()) < 5 * along.std() / math.sqrt(draws) + 1e-6 * (update @ update), name


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
                message = Rotated(payload_bytes=most).quantize(
                    update.astype(np.float32), key=Key(seed=1, client=client)
                )
                assert bytes_of(message) <= most, (p, name)
    assert bytes_of(message) >= 0.9 * most


def test_bits_are_met_on_average():
    update = RNG.standard_normal(50_000).astype(np.float32)
    for bits in (0.03, 0.2, 1.0, 3.0):
        sizes = [bytes_of(Rotated(bits).quantize(update, key=Key(seed=0, client=c))) for c in range(5)]
        assert math.isclose(np.mean(sizes), bits * 50_000 / 8, rel_tol=0.02)


def test_low_precision_is_used_where_few_coordinates_carry_the_update():
    spiky = np.zeros(20_000, np.float32)
    spiky[[5, 900, 17_000]] = [1.0, -2.0, 0.5]
    message = Rotated(payload_bytes=60).quantize(spiky, key=Key(seed=0))
    assert isinstance(message, QuantizedMessage)
    assert np.linalg.norm(message.dequantize() - spiky) < 0.05
    assert isinstance(
        Rotated(payload_bytes=300).quantize(np.ones(20_000, np.float32), key=Key(seed=0)), RotatedMessage
    )


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


@pytest.mark.parametrize("wrong", [*WRONG, {"payload_bytes": 3}])
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(ConfigError):
        Rotated(**wrong)


def test_scales_are_rounded_to_either_neighbour_and_keep_their_mean():
    exact = np.full(20_000, 1.3)
    rounded = round_scales(exact, 2, Key(seed=0))
    assert set(rounded.tolist()) == {1.25, 1.5}
    assert abs(rounded.mean() - 1.3) < 5 * 0.1 / math.sqrt(20_000)


def test_sums_of_cells_are_those_of_numpy():
    update = RNG.standard_normal(1000).astype(np.float32)
    squares, magnitudes = sum_cells(update)
    assert squares.size == 16
    assert math.isclose(squares.sum(), (update.astype(float) ** 2).sum())
    assert math.isclose(magnitudes[-1], np.abs(update[960:].astype(float)).sum())


@pytest.mark.parametrize(
    "quantizer", [Rotated(0.05), Rotated(2.0), Rotated(payload_bytes=60)], ids=lambda q: q.name
)
def test_rotated_is_a_quantizer(quantizer):
    check_quantizer(quantizer, trials=200)
