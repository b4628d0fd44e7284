"""The quantizer in machine code: rows of several clients at once, every width of bucket."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpaq import Key, LowPrecision
from fedpaq.quantizers.low_precision import quantize_numpy


@given(
    st.integers(1, 5),
    st.integers(1, 600),
    st.sampled_from([1, 2, 100, 127, 128, 32767]),
    st.none() | st.integers(1, 300),
    st.integers(0, 2**32),
)
@settings(max_examples=40, deadline=None)
def test_a_batch_in_machine_code_is_the_twin_row_by_row(count, dimension, levels, bucket_size, seed):
    rng = np.random.default_rng(seed)
    updates = rng.standard_normal((count, dimension)) * rng.choice([0, 1e-30, 1, 1e10], (count, dimension))
    keys = [
        Key(seed=int(rng.integers(2**63)), round=int(rng.integers(2**32)), client=client) for client in range(count)
    ]
    updates = updates.astype(np.float32)
    batch = LowPrecision(levels, bucket_size).quantize_batch(updates, keys)
    for update, key, message in zip(updates, keys, batch, strict=True):
        assert message == quantize_numpy(update, key, levels, bucket_size)


def test_a_sparse_row_is_rounded_by_the_same_draws_as_a_dense_one():
    """In a vector this long spans are skipped; in its buckets, with the same norms, none are."""
    update = np.zeros(4096, np.float32)
    update[:] = np.tile(np.random.default_rng(2).standard_normal(64).astype(np.float32), 64)
    bucketed = LowPrecision(1, 64).quantize(update, key=Key(seed=1))
    plain = quantize_numpy(update, Key(seed=1), 1, 64)
    assert bucketed == plain and len(set(bucketed.norms.tolist())) == 1
