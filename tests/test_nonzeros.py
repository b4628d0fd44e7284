"""Nonzeros: found at any alignment, by kernels as by NumPy, and added as messages add themselves."""

from __future__ import annotations

import numpy as np
import pytest

from fedpaq import Key, LowPrecision, compiled
from fedpaq.aggregation import add_messages
from fedpaq.quantizers import QuantizedBatch, nonzeros
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


@pytest.mark.parametrize("dtype", [np.int8, np.int16])
@pytest.mark.parametrize("threads", [False, True])
def test_kernels_with_and_without_threads_find_what_numpy_finds(dtype, threads, monkeypatch):
    rng = np.random.default_rng(3)
    rows = rng.integers(-2, 3, (7, 1003)).astype(dtype) * (rng.random((7, 1003)) < 0.05)
    monkeypatch.setattr(nonzeros, "WORTH_THREADS", 0 if threads else 2**40)
    fast = collect(rows, count(rows))
    monkeypatch.setattr(compiled, "load", lambda name: None)
    slow = collect(rows, count(rows))
    for name in ("ends", "positions", "values"):
        assert np.array_equal(getattr(fast, name), getattr(slow, name)), name
    assert slow.ends[-1] == np.count_nonzero(rows)


@pytest.mark.parametrize("levels", [1, 3, 200, 5000])
@pytest.mark.parametrize("bucket_size", [None, 64])
def test_a_batch_is_added_as_its_messages_add_themselves(levels, bucket_size):
    """Sparse batches by their non-zeros, dense ones level by level: the same to the bit."""
    rng = np.random.default_rng(levels)
    updates = rng.standard_normal((6, 3000)).astype(np.float32)
    batch = LowPrecision(levels, bucket_size).quantize_batch(updates, [Key(seed=i) for i in range(6)])
    run_of = np.array([0, 0, 0, 1, 1, 2])
    together, one_by_one = rng.standard_normal((2, 3, 3000))
    one_by_one[:] = together
    add_messages(batch, run_of, together)
    for message, run in zip(batch, run_of, strict=True):
        message.add_to(one_by_one[run])
    np.testing.assert_array_equal(together, one_by_one)


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
