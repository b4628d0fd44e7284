"""Replies and their mean: what the server refuses, in which words, and what it makes of the rest."""

from __future__ import annotations

import math

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpaq import CostModel, DivergedError, Identity, Key, LowPrecision, WireFormatError, codec
from fedpaq.flower import protocol
from fedpaq.flower.layout import Layout
from fedpaq.flower.mean import RoundMean
from fedpaq.flower.metrics import Pricing, mean_metrics, round_metrics
from fedpaq.flower.replies import Rules, Upload
from fedpaq.flower.rounds import ClosedRound, OpenRound
from fedpaq.quantizers import QuantizedMessage, RawMessage
from fedpaq.server.aggregation import ClippedMean
from flower.flower_apps import record
from flower.in_process_grid import InProcessGrid  # noqa: F401  (sets the identity that messages need)

pytestmark = pytest.mark.flower

SIZE = 30
LAYOUT = Layout.of(record(w=np.zeros(SIZE, np.float32)))
WITH_EXACT = Layout.of(record(w=np.zeros(3, np.float32), running_mean=np.zeros(2, np.float32), n=np.array(0)))


def update(seed=0, size=SIZE):
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


def payload(values, levels=2, bucket_size=None, client=0):
    quantizer = Identity() if levels is None else LowPrecision(levels, bucket_size)
    return codec.encode(quantizer.quantize(values, key=Key(seed=0, client=client)))


def question(number=0):
    message = Message(RecordDict(), 1000, "train")
    message.metadata.__dict__["_message_id"] = f"question-{number}"
    return message


def reply_to(message, data=None, exact=b"", *, arrays=None, config=None, metrics=()):
    """A reply with one payload, or with whatever the test gives instead."""
    if arrays is None:
        arrays = {"arrays": ArrayRecord({protocol.PAYLOAD: protocol.bytes_array(protocol.PAYLOAD, data)})}
    config = protocol.answer(exact=exact) if config is None else config
    content = {**arrays, protocol.RECORD: config} if config else dict(arrays)
    content |= {f"metrics-{at}": MetricRecord(values) for at, values in enumerate(metrics)}
    return Message(RecordDict(content), reply_to=message)


def refusal(rules, reply):
    with pytest.raises(WireFormatError) as refused:
        rules.read(0, reply)
    return str(refused.value)


def test_a_good_reply_is_read_as_it_was_sent():
    data = payload(update())
    upload = Rules(LAYOUT).read(7, reply_to(question(), data, metrics=[{"loss": 1.0}, {"loss": 2.0}]))
    assert (upload.client, upload.payload, upload.exact) == (7, data, b"")
    assert dict(upload.metrics) == {"loss": 1.0}  # the first record


def test_a_failed_client_is_told_in_its_own_words():
    failed = Message(Error(2, "disk on fire"), reply_to=question())
    assert refusal(Rules(LAYOUT), failed) == "the client failed: disk on fire"


def test_a_reply_without_our_record_or_of_another_version_is_refused():
    arrays = {"arrays": record(w=update())}
    assert "has no 'fedpaq' record" in refusal(Rules(LAYOUT), reply_to(question(), arrays=arrays, config={}))
    other = ConfigRecord({"version": 9, "exact": b""})
    assert "version=9" in refusal(Rules(LAYOUT), reply_to(question(), payload(update()), config=other))


@pytest.mark.parametrize(
    "arrays",
    [
        {},
        {"arrays": ArrayRecord()},
        {"arrays": record(w=np.zeros(SIZE, np.float32))},
        {"a": record(w=np.zeros(1, np.float32)), "b": record(w=np.zeros(1, np.float32))},
        {"arrays": ArrayRecord({"x": protocol.bytes_array(protocol.PACKED, b"1234")})},
    ],
    ids=["no record", "empty record", "a model", "two models", "another type"],
)
def test_exactly_one_payload_is_expected(arrays):
    assert "exactly one payload is expected" in refusal(Rules(LAYOUT), reply_to(question(), arrays=arrays))


def test_a_payload_is_refused_by_its_length_before_anything_is_parsed():
    most = 8 * SIZE + 1024
    text = refusal(Rules(LAYOUT), reply_to(question(), bytes(most + 1)))
    assert text == f"a payload of {most + 1} bytes is too long; at most {most} are needed"
    assert "too long" not in refusal(Rules(LAYOUT), reply_to(question(), bytes(most)))


@pytest.mark.parametrize("bucket_size", [1, 2, 7, SIZE, None])
@pytest.mark.parametrize("levels", [1, 300, 32767])
def test_no_honest_payload_is_too_long(levels, bucket_size):
    assert Rules(LAYOUT).read(0, reply_to(question(), payload(update(), levels, bucket_size))).payload


@pytest.mark.parametrize(
    ("exact", "message"),
    [
        (b"", "0 bytes of exact arrays where the layout says 16"),
        (bytes(17), "17 bytes of exact arrays where the layout says 16"),
        ("text", "no bytes of exact arrays where the layout says 16"),
        (np.float32([1, np.inf]).tobytes() + bytes(8), "exact array 'running_mean' holds NaN or infinity"),
        (np.float32([np.nan, 1]).tobytes() + bytes(8), "exact array 'running_mean' holds NaN or infinity"),
    ],
)
def test_exact_arrays_are_checked_for_length_and_numbers(exact, message):
    assert refusal(Rules(WITH_EXACT), reply_to(question(), payload(update(0, 3)), exact)) == message


def test_missing_exact_bytes_are_told_like_wrong_ones():
    config = ConfigRecord({"version": protocol.VERSION})
    text = refusal(Rules(WITH_EXACT), reply_to(question(), payload(update(0, 3)), config=config))
    assert text == "no bytes of exact arrays where the layout says 16"


@pytest.mark.parametrize(
    ("demanded", "sent", "accepted"),
    [
        (LowPrecision(2), (2, None), True),
        (LowPrecision(2), (3, None), False),
        (LowPrecision(2), (2, 10), False),
        (LowPrecision(2, 10), (2, 10), True),
        (LowPrecision(2), (None, None), False),
        (Identity(), (None, None), True),
        (Identity(), (2, None), False),
    ],
)
def test_a_demanded_quantizer_is_compared_in_levels_and_buckets(demanded, sent, accepted):
    rules, reply = Rules(LAYOUT, demanded), reply_to(question(), payload(update(), *sent))
    if accepted:
        assert rules.read(0, reply).client == 0
    else:
        assert f"the strategy demands {demanded.name}; give quantize_mod" in refusal(rules, reply)


@given(st.integers(0, 10**6), st.sampled_from([1, 2, 10, 100, None]), st.sampled_from([None, 1, 5, 64]))
@settings(max_examples=50, deadline=None)
def test_no_honest_update_within_the_norm_is_refused(seed, levels, bucket_size):
    """||levels||^2 has mean at most s^2 + s sqrt(p); the bound is twice that plus 64."""
    values = update(seed, 64)
    norm = float(np.linalg.norm(values.astype(np.float64)))
    rules = Rules(Layout.of(record(w=np.zeros(64, np.float32))), max_update_norm=norm * 1.0001)
    data = payload(values, levels, bucket_size if levels else None, client=seed)
    assert rules.read(0, reply_to(question(), data)).payload == data


@pytest.mark.parametrize("levels", [1, None])
def test_the_norm_is_refused_from_just_above_the_limit(levels):
    values = np.full(SIZE, 0.5, np.float32)
    norm = 0.5 * math.sqrt(SIZE)
    reply = reply_to(question(), payload(values, levels))
    assert Rules(LAYOUT, max_update_norm=norm * 1.01).read(0, reply)
    text = refusal(Rules(LAYOUT, max_update_norm=norm * 0.99), reply)
    assert "exceeds" in text and f"norm={norm:.6g}" in text


def test_norms_of_buckets_count_together():
    message = QuantizedMessage(np.zeros(SIZE, np.int8), np.full(3, 2.0, np.float32), 1, 10)
    reply = reply_to(question(), codec.encode(message))
    assert Rules(LAYOUT, max_update_norm=3.47).read(0, reply)  # sqrt(3 * 4) = 3.464
    assert "norm=3.4641 of the update exceeds max_update_norm=3.46" in refusal(
        Rules(LAYOUT, max_update_norm=3.46), reply
    )


def uploads(count=4, size=SIZE, levels=3, exact=b""):
    return [
        Upload(client, Key(seed=0, client=client), payload(update(client, size), levels, client=client), exact, MetricRecord())
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
    moved, exact = mean.apply(start)
    assert mean.count == 4 and exact == b"" and moved.dtype == np.float32
    np.testing.assert_allclose(moved, start + decoded_mean(items), rtol=1e-6, atol=1e-6)


def test_a_robust_aggregation_of_equals_is_the_plain_mean():
    items = [Upload(client, Key(seed=0, client=client), payload(update(5)), b"", MetricRecord()) for client in range(3)]
    plain, robust = RoundMean(LAYOUT), RoundMean(LAYOUT, ClippedMean(max_norm=1e9))
    for item in items:
        plain.add(item)
        robust.add(item)
    start = np.zeros(SIZE, np.float32)
    np.testing.assert_allclose(plain.apply(start)[0], robust.apply(start)[0], rtol=1e-6)


@pytest.mark.parametrize("aggregation", [None, ClippedMean(max_norm=1e9)])
def test_a_payload_that_does_not_decode_leaves_the_mean_as_it_was(aggregation):
    mean, (good, other) = RoundMean(LAYOUT, aggregation), uploads(2)
    mean.add(good)
    before = mean.apply(np.zeros(SIZE, np.float32))[0]
    for cut in (other.payload[:-1], other.payload + b"\0", payload(update(0, SIZE + 1))):
        with pytest.raises(WireFormatError):
            mean.add(Upload(1, Key(seed=0, client=1), cut, b"", MetricRecord()))
    assert mean.count == 1
    np.testing.assert_array_equal(mean.apply(np.zeros(SIZE, np.float32))[0], before)


def exact_bytes(means, number):
    return np.float32(means).tobytes() + np.int64(number).tobytes()


def test_exact_floats_are_averaged_and_integers_are_the_first_s():
    mean = RoundMean(WITH_EXACT)
    for client, (means, number) in enumerate([([1.0, 4.0], 7), ([2.0, 8.0], 100), ([6.0, 0.0], 200)]):
        mean.add(Upload(client, Key(seed=0, client=client), payload(np.zeros(3, np.float32)), exact_bytes(means, number), MetricRecord()))
    _, exact = mean.apply(np.zeros(3, np.float32))
    assert exact == exact_bytes([3.0, 4.0], 7)


def test_a_step_beyond_float32_is_an_error_that_says_what_to_do():
    mean = RoundMean(Layout.of(record(w=np.zeros(2, np.float32))))
    mean.add(Upload(0, Key(seed=0, client=0), codec.encode(RawMessage(np.float32([3e38, 0]))), b"", MetricRecord()))
    with pytest.raises(DivergedError, match="lower the step size of the clients, or set max_update_norm"):
        mean.apply(np.float32([3e38, 0]))


def closed_with(replies, clients=(0, 1, 2)):
    asked = {client: question(client) for client in clients}
    return OpenRound(3, asked).close([reply_to(asked[client], data) for client, data in replies], Rules(LAYOUT))


def test_a_round_sorts_replies_into_counted_rejected_and_late_whatever_their_order():
    good = payload(update())
    closed = closed_with([(2, good), (0, good[:-2])])
    assert (closed.server_round, closed.asked, closed.late) == (3, [0, 1, 2], [1])
    assert [upload.client for upload in closed.counted] == [2] and list(closed.rejected) == [0]
    assert closed.mean.count == 1


@given(st.permutations(range(5)))
@settings(max_examples=20, deadline=None)
def test_the_order_in_which_replies_arrive_changes_no_bit(order):
    replies = [(client, payload(update(client), client=client)) for client in range(5)]
    start = update(9)
    expected = closed_with(replies, range(5)).mean.apply(start)[0]
    found = closed_with([replies[at] for at in order], range(5)).mean.apply(start)[0]
    np.testing.assert_array_equal(found, expected)


def test_replies_to_other_questions_are_not_counted():
    stranger = reply_to(question(77), payload(update()))
    closed = OpenRound(1, {0: question(0)}).close([stranger], Rules(LAYOUT))
    assert closed.late == [0] and not closed.counted


def test_a_round_without_replies_costs_nothing_and_divides_by_nothing():
    closed = closed_with([])
    metrics = round_metrics(closed, SIZE, Pricing(CostModel(bandwidth=8.0), 10, seed=0))
    assert metrics["fedpaq-clients-late"] == 3 and metrics["fedpaq-clients-counted"] == 0
    assert metrics["fedpaq-times-smaller"] == 0.0 and metrics["fedpaq-modelled-seconds"] == 0.0


def test_the_metrics_of_a_round_add_up():
    data = payload(update())
    closed = closed_with([(0, data), (1, data), (2, b"junk")])
    metrics = round_metrics(closed, SIZE, None)
    counts = [metrics[f"fedpaq-clients-{kind}"] for kind in ("counted", "rejected", "late")]
    assert counts == [2, 1, 0] and sum(counts) == metrics["fedpaq-clients-asked"]
    assert metrics["fedpaq-payload-bytes"] == 2 * len(data) and metrics["fedpaq-float32-bytes"] == 8 * SIZE
    assert metrics["fedpaq-times-smaller"] == pytest.approx(4 * SIZE / len(data))
    assert "fedpaq-modelled-seconds" not in metrics


def test_modelled_time_is_the_uploads_plus_the_slowest_client():
    closed = closed_with([(0, payload(update())), (2, payload(update()))])
    model = CostModel(bandwidth=100.0, shift=0.5, scale=2.0)
    bits = 8 * sum(len(upload.payload) for upload in closed.counted)
    clients, gradients = np.array([0, 2]), np.array([10, 10])
    slowest = model.computation_seconds(4, 2, clients, gradients)
    assert Pricing(model, None, seed=4).seconds(closed, SIZE) == bits / 100.0
    assert Pricing(model, 10, seed=4).seconds(closed, SIZE) == pytest.approx(bits / 100.0 + slowest)


weighted = st.lists(st.tuples(st.floats(-100, 100), st.integers(1, 50)), min_size=1, max_size=6)


@given(weighted)
@settings(max_examples=50, deadline=None)
def test_a_mean_metric_is_that_of_the_examples_one_by_one(pairs):
    reports = [MetricRecord({"loss": loss, "n": count}) for loss, count in pairs]
    examples = [loss for loss, count in pairs for _ in range(count)]
    assert mean_metrics(reports, "n") == {"loss": pytest.approx(np.mean(examples), abs=1e-9)}


@pytest.mark.parametrize("weights", [(0, 0), (-1, -2), (math.nan, math.inf), (None, None), ([1], [2])])
def test_without_a_usable_weight_all_count_alike(weights):
    reports = [
        MetricRecord({"loss": loss} | ({} if weight is None else {"n": weight}))
        for loss, weight in zip((1.0, 2.0), weights, strict=True)
    ]
    assert mean_metrics(reports, "n") == {"loss": 1.5}


def test_only_metrics_that_all_report_in_one_shape_are_averaged():
    reports = [
        MetricRecord({"loss": 1.0, "mine": 5, "list": [1.0, 2.0], "ragged": [1], "n": 1}),
        MetricRecord({"loss": 3.0, "list": [3.0, 6.0], "ragged": [1, 2], "n": 3}),
    ]
    assert mean_metrics(reports, "n") == {"loss": 2.5, "list": [2.5, 5.0]}
    assert mean_metrics([], "n") == {}


def test_a_client_with_no_weight_beside_weighted_ones_does_not_count():
    reports = [MetricRecord({"loss": 1.0, "n": 2}), MetricRecord({"loss": 9.0, "n": -4})]
    assert mean_metrics(reports, "n") == {"loss": 1.0}


def test_closing_needs_no_more_than_the_record_says():
    closed = ClosedRound(1, [0], [], {}, [0], RoundMean(LAYOUT))
    assert closed.mean.count == 0
    foreign = Array(dtype="uint8", shape=(3,), stype="pickle", data=b"abc")
    reply = reply_to(question(), arrays={"arrays": ArrayRecord({"w": foreign})})
    assert "the reply holds 1 arrays" in refusal(Rules(LAYOUT), reply)
