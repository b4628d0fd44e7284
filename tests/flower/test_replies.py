"""Replies: what the server refuses, and in which words."""

from __future__ import annotations

import math

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpaq import Identity, LowPrecision, WireFormatError, codec
from fedpaq.flower import protocol
from fedpaq.flower.layout import Layout
from fedpaq.flower.mean import RoundMean
from fedpaq.flower.replies import Rules
from fedpaq.flower.rounds import ClosedRound
from fedpaq.quantizers import QuantizedMessage
from flower.flower_apps import record
from flower.made_replies import LAYOUT, SIZE, WITH_EXACT, payload, question, reply_to, update

pytestmark = pytest.mark.flower


def refusal(rules, reply):
    with pytest.raises(WireFormatError) as refused:
        rules.read(0, reply)
    return str(refused.value)


def test_a_good_reply_is_read_as_it_was_sent():
    data = payload(update())
    upload = Rules(LAYOUT).read(7, reply_to(question(), data, metrics=[{"loss": 1.0}, {"loss": 2.0}]))
    assert (upload.client, upload.payload, upload.exact) == (7, data, b"")
    assert [record["loss"] for record in upload.content.metric_records.values()] == [1.0, 2.0]


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


def test_a_payload_travels_in_the_record_or_as_an_array_but_not_both():
    data = payload(update())
    inside = ConfigRecord({"version": protocol.VERSION, "exact": b"", "payload": data})
    beside = {"arrays": ArrayRecord({protocol.PAYLOAD: protocol.bytes_array(protocol.PAYLOAD, data)})}
    rules = Rules(LAYOUT)
    assert rules.read(0, reply_to(question(), arrays={}, config=inside)).payload == data
    assert rules.read(0, reply_to(question(), arrays=beside)).payload == data
    told = refusal(rules, reply_to(question(), arrays=beside, config=inside))
    assert told == "the reply holds 1 arrays beside a payload; exactly one payload is expected"
    text = ConfigRecord({"version": protocol.VERSION, "exact": b"", "payload": "text"})
    assert "exactly one payload is expected" in refusal(rules, reply_to(question(), arrays={}, config=text))


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


def test_closing_needs_no_more_than_the_record_says():
    closed = ClosedRound(1, [0], [], {}, [0], RoundMean(LAYOUT))
    assert closed.mean.weight == 0
    foreign = Array(dtype="uint8", shape=(3,), stype="pickle", data=b"abc")
    reply = reply_to(question(), arrays={"arrays": ArrayRecord({"w": foreign})})
    assert "the reply holds 1 arrays" in refusal(Rules(LAYOUT), reply)
