"""MeanAccumulator: one plain mean for messages, payloads and sums made elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

from fedpaq import Identity, Key, LowPrecision, Rotated, WireFormatError, encode
from fedpaq.server.mean import MeanAccumulator, add_messages


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


def test_messages_and_payloads_give_one_mean():
    updates = np.random.default_rng(0).standard_normal((6, 40)).astype(np.float32)
    keys = [Key(seed=1, client=client) for client in range(6)]
    messages, run_of = LowPrecision(3).quantize_batch(updates, keys), np.repeat([0, 1], 3)
    by_message, by_payload = (MeanAccumulator(2, 40) for _ in range(2))
    by_message.add(messages, run_of)
    for message, key, run in zip(messages, keys, run_of, strict=True):
        by_payload.add_payload(encode(message), int(run), key)
    assert np.array_equal(by_message.mean(), by_payload.mean())


def test_a_payload_that_does_not_decode_does_not_count():
    accumulator = MeanAccumulator(1, 4)
    good = encode(LowPrecision(1).quantize(np.ones(4, np.float32), key=Key(seed=0)))
    accumulator.add_payload(good, 0, Key(seed=0))
    before = accumulator.mean()
    for bad in (good[:-1], good + b"\0", b""):
        with pytest.raises(WireFormatError):
            accumulator.add_payload(bad, 0, Key(seed=0))
    assert np.array_equal(accumulator.mean(), before)


@pytest.mark.parametrize("quantizer", [LowPrecision(1), LowPrecision(300, 16), Rotated(bits=0.5), Identity()])
def test_weights_count_the_same_for_messages_and_payloads(quantizer):
    updates = np.random.default_rng(0).standard_normal((4, 700)).astype(np.float32)
    keys, weights = [Key(seed=1, client=client) for client in range(4)], np.array([1.0, 7.0, 2.0, 500.0])
    messages, run_of = quantizer.quantize_batch(updates, keys), np.zeros(4, np.int64)
    by_message, by_payload = MeanAccumulator(1, 700), MeanAccumulator(1, 700)
    by_message.add(messages, run_of, weights)
    for message, key, weight in zip(messages, keys, weights, strict=True):
        by_payload.add_payload(encode(message), 0, key, weight)
    assert np.array_equal(by_message.mean(), by_payload.mean())
    expected = np.average([message.dequantize() for message in messages], axis=0, weights=weights)
    np.testing.assert_allclose(by_message.mean()[0], expected, rtol=1e-6, atol=1e-9)
