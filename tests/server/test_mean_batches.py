"""Batches of any density are added message by message."""

from __future__ import annotations

import numpy as np
import pytest

from fedpaq.quantizers import QuantizedBatch
from fedpaq.quantizers.message import num_buckets
from fedpaq.server.mean import add_messages


@pytest.mark.parametrize("density", [0.0, 0.02, 0.5, 1.0])
@pytest.mark.parametrize("bucket_size", [None, 1, 7, 500])
def test_adding_a_batch_of_any_density_adds_its_messages_in_order(density, bucket_size):
    """Below one non-zero in sixteen only those are visited; both ways add in the order of messages."""
    rng = np.random.default_rng(8)
    signed = (rng.integers(1, 4, (9, 300)) * (rng.random((9, 300)) < density)).astype(np.int8)
    norms = rng.random((9, num_buckets(300, bucket_size))).astype(np.float32)
    batch = QuantizedBatch(signed, norms, 3, bucket_size)
    run_of = np.array([2, 0, 0, 2, 1, 1, 0, 2, 1])  # runs need not come one after another
    total = rng.standard_normal((3, 300))
    expected = total.copy()
    add_messages(batch, run_of, total)
    for one, run in zip(batch, run_of, strict=True):
        one.add_to(expected[run])
    assert np.array_equal(total.view(np.uint64), expected.view(np.uint64))
