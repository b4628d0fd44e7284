"""Nonzeros: found at any alignment, by kernels as by NumPy, and added as messages add themselves."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest

from fedpaq import Key, LowPrecision, decode, encode
from fedpaq.codec import encode_batch
from fedpaq.kernels import numba as compiled
from fedpaq.quantizers import QuantizedBatch
from fedpaq.quantizers.nonzeros import collect, count


@pytest.mark.parametrize("offset", range(9))
@pytest.mark.parametrize("dtype", [np.int8, np.int16])
def test_nonzeros_are_found_at_any_alignment(dtype, offset):
    flat = np.zeros(4096, dtype)
    flat[:: 37 + offset] = -3
    for length in (0, 1, 7, 63, 64, 65, 200, 1000):
        row = flat[offset : offset + length]
        counts = count(row[None])
        assert counts.tolist() == [np.count_nonzero(row)]
        found = collect(row[None], counts)
        assert np.array_equal(found.positions, np.flatnonzero(row))
        assert np.array_equal(found.values, row[found.positions])


def test_a_count_beyond_16_bits_is_right():
    assert count(np.ones((2, 100_000), np.int8)).tolist() == [100_000, 100_000]


@pytest.mark.usefixtures("spread_over_threads")
@pytest.mark.parametrize("dtype", [np.int8, np.int16])
def test_kernels_with_and_without_threads_find_what_numpy_finds(dtype, monkeypatch):
    rng = np.random.default_rng(3)
    rows = rng.integers(-2, 3, (7, 1003)).astype(dtype) * (rng.random((7, 1003)) < 0.05)
    fast = collect(rows, count(rows))
    monkeypatch.setattr(compiled, "load", lambda name: None)
    slow = collect(rows, count(rows))
    for name in ("ends", "positions", "values"):
        assert np.array_equal(getattr(fast, name), getattr(slow, name)), name
    assert slow.ends[-1] == np.count_nonzero(rows)


def test_a_batch_looks_for_its_nonzeros_once(monkeypatch):
    batch = QuantizedBatch(np.eye(4, dtype=np.int8), np.ones((4, 1), np.float32), 1)
    first = batch.nonzeros
    monkeypatch.setattr("fedpaq.quantizers.message.collect", None)  # calling it again would fail
    assert batch.nonzeros is first and batch.counts.tolist() == [1, 1, 1, 1]
    assert first.ends.tolist() == [0, 1, 2, 3, 4] and first.positions.tolist() == [0, 1, 2, 3]


def test_part_of_a_batch_has_nonzeros_of_its_own():
    batch = QuantizedBatch(np.eye(4, dtype=np.int8), np.ones((4, 1), np.float32), 1)
    assert batch.nonzeros.ends[-1] == 4
    for part in (batch[1:3], batch[np.array([1, 2])]):
        assert part.nonzeros.positions.tolist() == [1, 2] and len(part) == 2


@pytest.mark.parametrize("bucket_size", [None, 2000, 5000, 3001])
@pytest.mark.parametrize("levels", [1, 2])
@pytest.mark.parametrize("jobs", [1, 5])
def test_a_quantizer_notes_the_nonzeros_that_are_there(levels, bucket_size, jobs):
    updates = np.random.default_rng(levels).standard_normal((jobs, 10_000)).astype(np.float32)
    updates[0, :500] = 0
    batch = LowPrecision(levels, bucket_size).quantize_batch(updates, [Key(seed=i) for i in range(jobs)])
    found = collect(batch.signed_levels, count(batch.signed_levels))
    shortest = 10_000 % bucket_size or bucket_size if bucket_size else 10_000
    assert (batch.known_nonzeros is not None) == (shortest > 1024 * levels**2)
    assert np.array_equal(batch.counts, count(batch.signed_levels))
    for name in ("ends", "positions", "values"):
        assert np.array_equal(getattr(batch.nonzeros, name), getattr(found, name)), name
    for job in (0, -1):
        one = batch[job]
        at = np.flatnonzero(one.signed_levels)
        if one.nonzeros is not None:
            assert np.array_equal(one.nonzeros.positions, at) and one.nonzeros.ends.tolist() == [0, len(at)]
            assert np.array_equal(one.nonzeros.values, one.signed_levels[at])


def test_nothing_is_noted_where_levels_are_not_rare_or_there_is_no_room(monkeypatch):
    update, key = np.random.default_rng(0).standard_normal(20_000).astype(np.float32), Key(seed=1)
    assert LowPrecision(5).quantize(update, key=key).nonzeros is None
    with_notes = LowPrecision(1).quantize(update, key=key)
    assert with_notes.nonzeros is not None
    monkeypatch.setattr(LowPrecision, "_room_for_nonzeros", lambda self, dimension: 7)
    without = LowPrecision(1).quantize(update, key=key)
    assert without.nonzeros is None and without == with_notes and encode(without) == encode(with_notes)


def test_a_quantizers_levels_are_read_only_so_its_notes_hold():
    message = LowPrecision(1).quantize(np.ones(5000, np.float32), key=Key(seed=1))
    with pytest.raises(ValueError, match="read-only"):
        message.signed_levels[0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        message.signed_levels.flags.writeable = True
    dense = LowPrecision(9).quantize(np.ones(50, np.float32), key=Key(seed=1))
    assert not dense.signed_levels.flags.writeable


def test_notes_do_not_outlive_the_levels_they_are_of():
    """A copy with other levels, and levels that became writeable, are looked at again."""
    message = LowPrecision(1).quantize(np.ones(5000, np.float32), key=Key(seed=1))
    other = replace(message, signed_levels=np.eye(1, 5000, 7, dtype=np.int8)[0])
    assert other.nonzeros.levels is not other.signed_levels
    assert decode(encode(other), dimension=5000) == other
    thawed = pickle.loads(pickle.dumps(message))
    assert thawed == message and thawed.signed_levels.flags.writeable
    thawed.signed_levels[:] = 0
    thawed.signed_levels[7] = -1
    assert np.flatnonzero(decode(encode(thawed), dimension=5000).signed_levels).tolist() == [7]
    batch = pickle.loads(pickle.dumps(LowPrecision(1).quantize_batch(np.ones((2, 5000)), [Key(seed=1)] * 2)))
    batch.signed_levels[:] = 0
    assert batch.counts.tolist() == [0, 0] and batch[0].nonzeros is None and not batch.nonzeros.positions.size
    twin = copy.deepcopy(message)
    twin.signed_levels[:] = 0
    twin.signed_levels.flags.writeable = False
    assert not decode(encode(twin), dimension=5000).signed_levels.any()


def test_a_batch_of_nobody_and_a_batch_by_list_are_batches():
    nobody = LowPrecision(1).quantize_batch(np.zeros((0, 5000), np.float32), [])
    assert len(nobody) == 0 and encode_batch(nobody) == [] and nobody.nonzeros.ends.tolist() == [0]
    batch = LowPrecision(1).quantize_batch(np.ones((3, 5000), np.float32), [Key(seed=i) for i in range(3)])
    picked = batch[[2, 0]]
    assert [picked[0], picked[1]] == [batch[2], batch[0]] and batch[np.int64(1)] == batch[1]


def test_a_batch_made_of_notes_is_added_and_encoded_as_one_without():
    updates = np.random.default_rng(2).standard_normal((4, 6000)).astype(np.float32)
    noted = LowPrecision(1).quantize_batch(updates, [Key(seed=i) for i in range(4)])
    plain = QuantizedBatch(noted.signed_levels.copy(), noted.norms, 1)
    assert noted.known_nonzeros is not None and plain.known_nonzeros is None
    assert encode_batch(noted) == encode_batch(plain) == [encode(message) for message in noted]
