"""RoundMean: what the server makes of the uploads that count."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import RecordDict

from fedpaq import DivergedError, Key, WireFormatError, codec
from fedpaq.flower.layout import Layout
from fedpaq.flower.mean import RoundMean
from fedpaq.flower.replies import Upload
from fedpaq.quantizers import RawMessage
from fedpaq.server.aggregation import ClippedMean, Mean, TrimmedMean, WeightedMean
from flower.flower_apps import record
from flower.made_replies import LAYOUT, SIZE, WITH_EXACT, payload, plus, update

pytestmark = pytest.mark.flower


def uploads(count=4, size=SIZE, levels=3, exact=b""):
    return [
        Upload(
            client,
            Key(seed=0, client=client),
            payload(update(client, size), levels, client=client),
            exact,
            RecordDict(),
        )
        for client in range(count)
    ]


def decoded_mean(items):
    """The mean of the messages, decoded one by one in float64: line 11 as written."""
    return np.mean([codec.decode(item.payload).dequantize().astype(np.float64) for item in items], axis=0)


@pytest.mark.parametrize("levels", [1, 3, 200, None])
def test_the_model_moves_by_the_mean_of_what_the_payloads_decode_to(levels):
    mean, items, start = RoundMean(LAYOUT), uploads(levels=levels), update(99)
    for item in items:
        mean.add(item)
    moved, exact = mean.apply(plus(start))
    assert mean.weight == 4 and exact == b"" and moved.dtype == np.float32
    np.testing.assert_allclose(moved, start + decoded_mean(items), rtol=1e-6, atol=1e-6)


def test_a_robust_aggregation_of_equals_is_the_plain_mean():
    items = [Upload(client, Key(seed=0, client=client), payload(update(5)), b"", RecordDict()) for client in range(3)]
    plain, robust = RoundMean(LAYOUT), RoundMean(LAYOUT, ClippedMean(max_norm=1e9))
    for item in items:
        plain.add(item)
        robust.add(item)
    start = np.zeros(SIZE, np.float32)
    np.testing.assert_allclose(plain.apply(plus(start))[0], robust.apply(plus(start))[0], rtol=1e-6)


@pytest.mark.parametrize("aggregation", [None, ClippedMean(max_norm=1e9)])
def test_a_payload_that_does_not_decode_leaves_the_mean_as_it_was(aggregation):
    mean, (good, other) = RoundMean(LAYOUT, aggregation), uploads(2)
    mean.add(good)
    before = mean.apply(plus(np.zeros(SIZE, np.float32)))[0]
    for cut in (other.payload[:-1], other.payload + b"\0", payload(update(0, SIZE + 1))):
        with pytest.raises(WireFormatError):
            mean.add(Upload(1, Key(seed=0, client=1), cut, b"", RecordDict()))
    assert mean.weight == 1
    np.testing.assert_array_equal(mean.apply(plus(np.zeros(SIZE, np.float32)))[0], before)


def exact_bytes(means, number):
    return np.float32(means).tobytes() + np.int64(number).tobytes()


def test_exact_floats_are_averaged_and_integers_are_the_first_s():
    mean = RoundMean(WITH_EXACT)
    for client, (means, number) in enumerate([([1.0, 4.0], 7), ([2.0, 8.0], 100), ([6.0, 0.0], 200)]):
        mean.add(
            Upload(
                client,
                Key(seed=0, client=client),
                payload(np.zeros(3, np.float32)),
                exact_bytes(means, number),
                RecordDict(),
            )
        )
    _, exact = mean.apply(plus(np.zeros(3, np.float32)))
    assert exact == exact_bytes([3.0, 4.0], 7)


def exact_uploads(values, weights=None):
    """Uploads that move nothing but the exact floats of WITH_EXACT."""
    nothing = payload(np.zeros(3, np.float32))
    return [
        Upload(client, Key(seed=0, client=client), nothing, exact_bytes(means, 1), RecordDict(), weight)
        for client, (means, weight) in enumerate(zip(values, weights or [1.0] * len(values), strict=True))
    ]


def combined(aggregation, items, held=(0.0, 0.0)):
    mean = RoundMean(WITH_EXACT, aggregation, exact_bytes(held, 0))
    for item in items:
        mean.add(item)
    return WITH_EXACT.exact_arrays(mean.apply(plus(np.zeros(3, np.float32)))[1])["running_mean"]


@pytest.mark.parametrize("aggregation", [TrimmedMean(0.2), ClippedMean()])
def test_a_liar_moves_exact_floats_no_further_than_the_model(aggregation):
    honest = [[1.0 + 0.01 * client, 2.0] for client in range(9)]
    lied = combined(aggregation, exact_uploads([*honest, [-1e29, -1e29]]), held=(0.9, 1.9))
    np.testing.assert_allclose(lied, [1.04, 2.0], atol=0.05)


def test_a_clipped_mean_does_not_shrink_exact_floats_that_stay():
    held = (5.0, 70.0)
    np.testing.assert_array_equal(combined(ClippedMean(max_norm=1.0), exact_uploads([held] * 3), held), held)


@pytest.mark.parametrize(("aggregation", "weights"), [(Mean(), None), (WeightedMean(), [3.0, 0.1, 17.0])])
def test_a_plain_mean_of_exact_floats_is_that_of_their_values_to_the_bit(aggregation, weights):
    values = np.random.default_rng(0).standard_normal((3, 2)).astype(np.float32)
    total = sum(w * v.astype(np.float64) for w, v in zip(weights or [1.0] * 3, values, strict=True))
    expected = (total / sum(weights or [1.0] * 3)).astype(np.float32)
    found = combined(aggregation, exact_uploads(values.tolist(), weights), held=(8.0, 9.0))
    np.testing.assert_array_equal(found, expected, strict=True)


def test_exact_floats_beyond_their_range_are_an_error():
    layout = Layout.of(record(w=np.zeros(3, np.float32), running_var=np.zeros(1)))
    mean = RoundMean(layout, WeightedMean())
    nothing, largest = payload(np.zeros(3, np.float32)), np.array([1e308]).tobytes()
    with np.errstate(over="ignore"):
        mean.add(Upload(0, Key(seed=0), nothing, largest, RecordDict(), 10.0))
    with pytest.raises(DivergedError):
        mean.apply(plus(np.zeros(3, np.float32)))


def test_a_step_beyond_float32_is_an_error_that_says_what_to_do():
    mean = RoundMean(Layout.of(record(w=np.zeros(2, np.float32))))
    mean.add(Upload(0, Key(seed=0, client=0), codec.encode(RawMessage(np.float32([3e38, 0]))), b"", RecordDict()))
    with pytest.raises(DivergedError, match="lower the step size of the clients, or set max_update_norm"):
        mean.apply(plus(np.float32([3e38, 0])))
