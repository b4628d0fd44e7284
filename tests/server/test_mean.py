"""MeanAccumulator: one plain mean for messages, payloads and sums made elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

from fedpaq import ConfigError, Identity, Key, LowPrecision, Rotated, WireFormatError, accumulate, encode
from fedpaq.quantizers import QuantizedBatch
from fedpaq.server.aggregation import TrimmedMean
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


KINDS = [LowPrecision(1), LowPrecision(300), LowPrecision(3, 16), Rotated(bits=4.0), Identity()]


def three_messages(quantizer):
    updates = np.random.default_rng(0).standard_normal((3, 700)).astype(np.float32)
    return quantizer.quantize_batch(updates, [Key(seed=1, client=client) for client in range(3)])


@pytest.mark.parametrize("quantizer", KINDS)
@pytest.mark.parametrize("dimension", [1, 699, 701])
def test_messages_of_another_dimension_are_refused_before_anything_is_added(quantizer, dimension):
    """A kernel would write beyond the total, or leave a part of it out."""
    messages, total = three_messages(quantizer), np.zeros((1, dimension))
    for take in (
        lambda: add_messages(messages, np.zeros(3, np.int64), total),
        lambda: MeanAccumulator(1, dimension).add(messages, np.zeros(3, np.int64)),
        lambda: TrimmedMean().start(1, dimension).add(messages, np.zeros(3, np.int64)),
    ):
        with pytest.raises(ConfigError, match=rf"dimension=\[700\] do not fit params of {dimension}; quantize whole"):
            take()
    with pytest.raises(ConfigError, match=f"total of {dimension} does not fit a message of dimension=700; pass np.zer"):
        messages[0].add_to(total[0])
    with pytest.raises(WireFormatError, match=f"dimension=700 of the payload is not the {dimension} expected"):
        accumulate(encode(messages[0]), total[0], key=Key(seed=1))
    assert not total.any()


@pytest.mark.parametrize("quantizer", KINDS)
@pytest.mark.parametrize(
    ("run_of", "weights", "complaint"),
    [
        ([0, 1], None, "3 messages come with 2 runs; pass one for each message"),
        ([0, 1, 1, 1], None, "3 messages come with 4 runs"),
        ([0, 1, 1], [1.0], "3 messages come with 3 runs and 1 weights"),
        ([0, 1, 2], None, r"run_of has numbers from 0 to 2; choose 0\.\.1"),
        ([-1, 0, 1], None, "run_of has numbers from -1 to 1"),
    ],
)
def test_each_message_has_a_run_and_a_weight_or_all_are_refused(quantizer, run_of, weights, complaint):
    total = np.zeros((2, 700))
    with pytest.raises(ConfigError, match=complaint):
        add_messages(three_messages(quantizer), np.array(run_of), total, None if weights is None else np.array(weights))
    assert not total.any()


@pytest.mark.parametrize(("count", "buckets"), [(2, 44), (3, 43), (3, 1)])
def test_a_batch_whose_norms_do_not_fit_its_levels_is_refused(count, buckets):
    batch = QuantizedBatch(np.ones((3, 700), np.int8), np.ones((count, buckets), np.float32), 1, 16)
    with pytest.raises(ConfigError, match="norms is not 44 finite, non-negative numbers"):
        add_messages(batch, np.zeros(3, np.int64), np.zeros((1, 700)))
