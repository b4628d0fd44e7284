"""Example 1 of the paper: mean, variance, twins, edges."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpaq import Identity, Key, LowPrecision
from fedpaq.errors import ConfigError, NonFiniteUpdateError
from fedpaq.kernels import numba as compiled
from fedpaq.quantizers import QuantizedMessage, check_quantizer
from fedpaq.quantizers.low_precision import quantize_numpy, sum_of_squares_numpy
from fedpaq.randomness import Purpose, halves_numpy


@pytest.mark.parametrize(("dimension", "levels"), [(1, 1), (5, 1), (785, 1), (785, 10), (92027, 5)])
def test_mean_and_variance_match_example_1(dimension, levels, rng):
    trials = 4000 if dimension < 10_000 else 1000
    x = rng.standard_normal(dimension).astype(np.float32)
    exact = x.astype(np.float64)
    norm = float(np.float32(np.linalg.norm(exact)))
    share = np.abs(exact) / norm * levels
    probability = share - np.floor(share)  # of rounding up
    variance = (norm / levels) ** 2 * probability * (1 - probability)  # per coordinate, exact

    total, squared = np.zeros(dimension), np.zeros(trials)
    quantizer = LowPrecision(levels)
    for start in range(0, trials, 50):
        keys = [Key(seed=1, round=trial) for trial in range(start, start + 50)]
        batch = quantizer.quantize_batch(np.broadcast_to(x, (50, dimension)), keys)
        errors = batch.signed_levels * (norm / levels) - exact  # (50, p)
        total += errors.sum(axis=0)
        squared[start : start + 50] = (errors**2).sum(axis=1)

    # Mean: the sum over coordinates of z^2 has `dimension` degrees of freedom.
    safe = np.maximum(variance, (norm * 1e-7) ** 2)
    z_square = ((total / trials) ** 2 / (safe / trials)).sum()
    assert z_square < dimension + 5 * math.sqrt(2 * dimension) + 5
    # Variance: its mean over trials against the exact sum, five standard errors.
    rounding = (norm * 1e-6) ** 2
    assert abs(squared.mean() - variance.sum()) < 5 * squared.std() / math.sqrt(trials) + rounding
    assert squared.mean() <= quantizer.variance_bound(dimension) * norm**2 + 5 * squared.std() / math.sqrt(trials)


@pytest.mark.parametrize(
    "quantizer", [LowPrecision(1), LowPrecision(7), LowPrecision(300), LowPrecision(4, 64), Identity()]
)
def test_the_package_s_own_quantizers_pass_the_conformance_check(quantizer):
    check_quantizer(quantizer)


class Biased(LowPrecision):
    """Rounds to nearest: the defect most of the field has."""

    def quantize_batch(self, updates, keys):
        rows = np.asarray(updates, np.float32)
        messages = []
        for row in rows:
            norm = np.float32(np.linalg.norm(row.astype(np.float64)))
            signed = np.zeros(row.size, np.int8) if norm == 0 else np.rint(row / norm * self.levels).astype(np.int8)
            messages.append(QuantizedMessage(signed, np.array([norm], np.float32), self.levels))
        return messages


class Overconfident(LowPrecision):
    """Promises less variance than it has."""

    def variance_bound(self, dimension):
        return super().variance_bound(dimension) / 100


class Forgetful(LowPrecision):
    """Ignores the key of a batch."""

    def quantize_batch(self, updates, keys):
        return super().quantize_batch(updates, [Key(seed=5)] * len(keys))

    def quantize(self, update, *, key):
        return LowPrecision(self.levels).quantize(update, key=key)


@pytest.mark.parametrize(
    ("quantizer", "complaint"),
    [(Biased(1), "is biased"), (Overconfident(1), "variance_bound"), (Forgetful(3), "in a batch")],
)
def test_the_conformance_check_catches_broken_quantizers(quantizer, complaint):
    with pytest.raises(ConfigError, match=complaint):
        check_quantizer(quantizer)


@given(
    dimension=st.integers(0, 1200),
    levels=st.sampled_from([1, 2, 10, 127, 128, 32767]),
    bucket=st.one_of(st.none(), st.integers(1, 700)),
    scale=st.sampled_from([1.0, 1e-44, 1e-20, 1e30]),
    seed=st.integers(0, 2**64 - 1),
)
@settings(max_examples=80, deadline=None)
def test_the_compiled_quantizer_equals_its_twin(dimension, levels, bucket, scale, seed):
    x = (np.random.default_rng(dimension).standard_normal(dimension) * scale).astype(np.float32)
    key = Key(seed=seed, round=3, client=8)
    message = LowPrecision(levels, bucket).quantize(x, key=key)
    assert message == quantize_numpy(x, key, levels, bucket)
    assert np.abs(message.signed_levels.astype(np.int64)).max(initial=0) <= levels
    assert np.all(np.sign(message.signed_levels) * np.sign(x) >= 0)


def test_long_vectors_cross_the_chunks_of_the_pinned_sum(rng):
    for dimension in (65_535, 65_536, 65_537, 200_003):
        x = rng.standard_normal(dimension).astype(np.float32)
        assert LowPrecision(3).quantize(x, key=Key(seed=1)) == quantize_numpy(x, Key(seed=1), 3, None)
        assert sum_of_squares_numpy(x) == pytest.approx(float((x.astype(np.float64) ** 2).sum()), rel=1e-13)


def test_the_norm_is_more_exact_than_a_float32_sum():
    x = np.full(2**24, 1e-3, np.float32)
    x[0] = 100.0
    exact = math.sqrt(100.0**2 + (2**24 - 1) * float(np.float32(1e-3)) ** 2)
    assert LowPrecision(1).quantize(x, key=Key(seed=0)).norms[0] == np.float32(exact)


def test_a_batch_equals_one_by_one_and_ignores_chunking(rng):
    updates = rng.standard_normal((9, 500)).astype(np.float32)
    keys = [Key(seed=2, round=1, client=client) for client in range(9)]
    quantizer = LowPrecision(5)
    batch = list(quantizer.quantize_batch(updates, keys))
    assert batch == [quantizer.quantize(row, key=key) for row, key in zip(updates, keys, strict=True)]
    assert batch == [*quantizer.quantize_batch(updates[:4], keys[:4]), *quantizer.quantize_batch(updates[4:], keys[4:])]


@pytest.mark.usefixtures("spread_over_threads")
def test_levels_do_not_depend_on_the_number_of_threads(rng):
    updates = rng.standard_normal((6, 3000)).astype(np.float32)
    keys = [Key(seed=2, client=client) for client in range(6)]
    found = list(LowPrecision(1).quantize_batch(updates, keys))
    assert found == [quantize_numpy(row, key, 1, None) for row, key in zip(updates, keys, strict=True)]


def test_a_single_nonzero_coordinate_is_sent_exactly():
    x = np.zeros(1000, np.float32)
    x[500] = -2.5
    assert np.array_equal(LowPrecision(1).quantize(x, key=Key(seed=3)).dequantize(), x)


def test_buckets_carry_their_own_norms(rng):
    x = rng.standard_normal(1000).astype(np.float32)
    message = LowPrecision(2, 300).quantize(x, key=Key(seed=3))
    expected = [np.float32(math.sqrt(sum_of_squares_numpy(x[i : i + 300]))) for i in range(0, 1000, 300)]
    assert message.norms.tolist() == expected


def test_tensors_and_arrays_give_the_same_message(rng):
    x = rng.standard_normal(100).astype(np.float32)
    key = Key(seed=3)
    assert LowPrecision(1).quantize(torch.from_numpy(x), key=key) == LowPrecision(1).quantize(x, key=key)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("quantizer", [LowPrecision(1), LowPrecision(1, 7), Identity()])
def test_a_non_finite_update_names_client_and_coordinate(bad, quantizer):
    updates = np.ones((3, 20), np.float32)
    updates[1, 13] = bad
    updates[1, 17] = np.nan
    keys = [Key(seed=0, round=6, client=40 + j) for j in range(3)]
    with pytest.raises(NonFiniteUpdateError, match=r"update\[13\].*client=41 in round=6"):
        quantizer.quantize_batch(updates, keys)


def test_a_norm_beyond_float32_is_refused():
    with pytest.raises(NonFiniteUpdateError, match=r"norm of the update of client=4 .*exceeds float32"):
        LowPrecision(1).quantize(np.full(100, 3e38, np.float32), key=Key(seed=0, client=4))


def test_variance_bound_is_the_smaller_of_the_two_forms():
    assert LowPrecision(1).variance_bound(100) == 10.0
    assert LowPrecision(100).variance_bound(100) == 100 / 100**2
    assert LowPrecision(1, 25).variance_bound(100) == 5.0
    assert Identity().variance_bound(100) == 0.0


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: LowPrecision(0), "levels=0 is out of range; choose 1..32767"),
        (lambda: LowPrecision(40000), "levels=40000"),
        (lambda: LowPrecision(1.5), "levels=1.5 is not an integer"),
        (lambda: LowPrecision(1, 0), "bucket_size=0"),
        (lambda: LowPrecision(1).quantize(np.zeros((2, 2), np.float32), key=Key(seed=0)), r"flatten it to \(p,\)"),
        (lambda: LowPrecision(1).quantize(np.array(["a"]), key=Key(seed=0)), "not numeric"),
        (lambda: LowPrecision(1).quantize_batch(np.zeros((2, 2), np.float32), [Key(seed=0)]), "1 keys"),
    ],
)
def test_bad_arguments_are_refused(make, complaint):
    with pytest.raises(ConfigError, match=complaint):
        make()


def test_add_to_touches_only_nonzeros_and_equals_dequantize(rng):
    x = rng.standard_normal(400).astype(np.float32)
    for quantizer in (LowPrecision(1), LowPrecision(3, 50), Identity()):
        message = quantizer.quantize(x, key=Key(seed=1))
        total = np.zeros(400)
        message.add_to(total, 0.5)
        assert np.allclose(total, 0.5 * message.dequantize().astype(np.float64), rtol=1e-6, atol=0)


def test_without_numba_the_twin_does_the_work(monkeypatch, rng):
    x = rng.standard_normal((2, 300)).astype(np.float32)
    keys = [Key(seed=1), Key(seed=2)]
    fast = list(LowPrecision(2).quantize_batch(x, keys))
    monkeypatch.setattr(compiled, "load", lambda name: None)
    assert list(LowPrecision(2).quantize_batch(x, keys)) == fast


@pytest.mark.parametrize("trial", range(24))
def test_the_kernel_equals_its_twin_at_any_scale_density_and_bucket(trial):
    """Where levels are rare the kernel skips spans by an estimate in single precision; it must miss none."""
    rng = np.random.default_rng(trial)
    dimension, levels = int(rng.integers(1, 40_000)), int(rng.choice([1, 1, 2, 4, 64]))
    bucket_size = None if trial % 2 else int(rng.integers(1, dimension + 1))
    update = rng.standard_normal(dimension) * 10.0 ** rng.integers(-44, 34)
    update[rng.random(dimension) < rng.choice([0.0, 0.9])] = 0.0
    key = Key(seed=trial, round=3, client=4)
    message = LowPrecision(levels, bucket_size).quantize(update.astype(np.float32), key=key)
    assert message == quantize_numpy(update.astype(np.float32), key, levels, bucket_size)


def test_a_coordinate_just_at_its_threshold_is_not_skipped():
    """Values for which |x| s / norm + u comes within a few units in the last place of one."""
    key, dimension = Key(seed=8), 8192
    high, low = (halves_numpy(purpose, key, dimension) for purpose in (Purpose.DITHER, Purpose.DITHER_LOW))
    dither = (high * 2.0**16 + low) * 2.0**-32
    near = 1 + np.flatnonzero(dither[1:] > 0.99)
    update = np.zeros(dimension, np.float32)
    update[0] = 1.0
    for _ in range(3):  # the norm depends, a little, on what is chosen by it
        norm = np.float32(np.sqrt(sum_of_squares_numpy(update)))
        update[near] = (1.0 - dither[near]) * float(norm)
    counts = []
    for ulps in range(-4, 5):
        moved = update.copy()
        moved[near] += ulps * np.spacing(update[near])
        message = LowPrecision(1).quantize(moved, key=key)
        assert message == quantize_numpy(moved, key, 1, None)
        counts.append(np.count_nonzero(message.signed_levels[near]))
    assert counts == sorted(counts) and counts[0] < len(near) / 4 and counts[-1] > len(near) * 3 / 4


@pytest.mark.parametrize(("dimension", "levels"), [(8192, 1), (8191, 2), (700, 1), (900, 200)])
def test_the_low_half_of_a_draw_decides_where_the_high_half_cannot(dimension, levels):
    """Values half a unit of the high half below the next level: rare levels and dense ones alike."""
    key = Key(seed=5, round=2, client=7)
    high, low = (halves_numpy(purpose, key, dimension) for purpose in (Purpose.DITHER, Purpose.DITHER_LOW))
    norm = np.float32(1.0)
    update = np.zeros(dimension, np.float32)
    near = np.flatnonzero(high[1:] > 0.97 * 2**16) + 1
    update[near] = (1.0 - (high[near] + 0.5) * 2.0**-16) / levels
    update[0] = math.sqrt(1.0 - float((update[near].astype(np.float64) ** 2).sum()))
    message = LowPrecision(levels).quantize(update, key=key)
    assert message == quantize_numpy(update, key, levels, None) and abs(message.norms[0] - norm) < 1e-6
    up = message.signed_levels[near] > 0
    share, error = np.mean(low[near] >= 2**15), 4 / math.sqrt(len(near))
    assert len(near) >= 10 and abs(up.mean() - share) < error
    assert 0 < up.sum() < len(near)  # the high halves alone say the same of all of them
