"""What the codec may be handed, and how it says no: every error names the field, its value and the remedy."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from codec_cases import arithmetic_message, gaussian_message
from fedpaq import Key, codec
from fedpaq.codec import accumulate, decode, encode, encode_batch
from fedpaq.errors import ConfigError, WireFormatError
from fedpaq.quantizers import LowPrecision, QuantizedBatch, QuantizedMessage, RawMessage

ONE = np.ones(1, np.float32)


LEVELS = np.array([0, 1, 0, -1], np.int8)


GOOD = QuantizedMessage(LEVELS, ONE, 1)


NOT_MESSAGES = [
    (QuantizedMessage(LEVELS.astype(float), ONE, 1), r"shape=\(4,\), dtype=float64 is not a vector of integers"),
    (QuantizedMessage(LEVELS.reshape(2, 2), ONE, 1), r"shape=\(2, 2\), dtype=int8 is not a vector of integers"),
    (QuantizedMessage(LEVELS > 0, ONE, 1), "dtype=bool is not a vector of integers; pass .* int8 or int16"),
    (QuantizedMessage(LEVELS[:0], ONE, 1), "dimension=0 is out of range; choose an integer >= 1"),
    (QuantizedMessage(LEVELS, ONE, 0), r"levels=0 is out of range; choose 1\.\.32767"),
    (QuantizedMessage(LEVELS, ONE, 32768), r"levels=32768 is out of range; choose 1\.\.32767"),
    (QuantizedMessage(LEVELS, ONE, 1.5), "levels=1.5 is not an integer"),
    (QuantizedMessage(LEVELS, ONE, 1, 0), r"bucket_size=0 is out of range; choose 1\.\."),
    (QuantizedMessage(LEVELS, ONE, 1, -5), r"bucket_size=-5 is out of range; choose 1\.\."),
    (QuantizedMessage(LEVELS, ONE, 1, 2**62 + 1), "bucket_size=4611686018427387905 is out of range"),
    (QuantizedMessage(2 * LEVELS, ONE, 1), r"message.signed_levels exceeds levels=1; allowed: -1\.\.1"),
    (QuantizedMessage(LEVELS, np.ones(2, np.float32), 1), "message.norms is not 1 finite, non-negative numbers"),
    (QuantizedMessage(LEVELS, ONE, 1, 3), "message.norms is not 2 finite, non-negative numbers"),
    (QuantizedMessage(LEVELS, ONE * np.inf, 1), "message.norms is not 1 finite"),
    (QuantizedMessage(LEVELS, -0.0 * ONE, 1), "message.norms is not 1 finite, non-negative"),
    (RawMessage(np.array([1e300])), "message.values holds NaN or infinity; a payload carries finite numbers"),
    (RawMessage(np.array([np.nan], np.float32)), "message.values holds NaN"),
]


@pytest.mark.parametrize(("bad", "complaint"), NOT_MESSAGES, ids=[text for _, text in NOT_MESSAGES])
def test_what_is_no_message_is_refused_alone_and_among_others(bad, complaint):
    for batch in ([bad], [GOOD, bad], [bad, GOOD]):
        with pytest.raises(ConfigError, match=complaint):
            encode_batch(batch)


@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.int64, ">i2"])
def test_the_type_that_holds_the_levels_does_not_change_the_bytes(dtype):
    wide = QuantizedMessage(LEVELS.astype(dtype), ONE.astype(">f4"), np.int64(1))
    assert encode(wide) == encode(GOOD)
    assert encode_batch([GOOD, wide, GOOD]) == [encode(GOOD)] * 3


def test_unsigned_levels_are_taken_at_their_value():
    assert encode(QuantizedMessage(np.array([0, 200], np.uint8), ONE, 255)) == encode(
        QuantizedMessage(np.array([0, 200], np.int16), ONE, 255)
    )
    with pytest.raises(ConfigError, match="exceeds levels=255"):
        encode(QuantizedMessage(np.array([0, 65535], np.uint16), ONE, 255))


@pytest.mark.parametrize("bucket_size", [2**62, 2**40, 4, 3, 1])
def test_every_bucket_a_quantizer_takes_comes_back(bucket_size):
    message = LowPrecision(3, bucket_size).quantize(np.arange(4.0), key=Key(seed=1))
    assert decode(encode(message)) == message


def test_a_batch_with_no_messages_has_no_payloads():
    assert encode_batch(QuantizedBatch(np.zeros((0, 4), np.int8), np.zeros((0, 1), np.float32), 1)) == []


@pytest.mark.parametrize(
    ("payload", "kind"),
    [(None, "NoneType"), (7, "int"), ([1, 2], "list"), ("text", "str"), (np.zeros(3, "M8[s]"), "ndarray")],
)
def test_what_is_no_run_of_bytes_is_a_wire_format_error(payload, kind):
    for read in (decode, codec.read_header, lambda given: accumulate(given, np.zeros(3))):
        with pytest.raises(WireFormatError, match=f"payload of type {kind} is not contiguous bytes"):
            read(payload)


def test_bytes_may_lie_in_an_array_of_any_shape():
    payload = encode(RawMessage(np.arange(6, dtype=np.float32)))  # 32 bytes
    flat = np.frombuffer(payload, np.uint8)
    for shaped in (flat.reshape(4, 8), flat.view(np.uint32), flat.view(">u2").reshape(2, 8)):
        assert decode(shaped).values.tolist() == [0, 1, 2, 3, 4, 5]


def test_a_decoded_message_does_not_keep_or_share_the_payload():
    payload = bytearray(encode(RawMessage(np.arange(6, dtype=np.float32))))
    message = decode(payload)
    payload[:] = bytes(len(payload))  # would raise BufferError if a view were still held at another size
    del payload[5:]
    assert message.values.tolist() == [0, 1, 2, 3, 4, 5] and message.values.flags.writeable


@pytest.mark.parametrize(
    ("total", "complaint"),
    [
        (np.zeros(4, np.float32), "total is not a float64 vector; pass np.zeros"),
        (np.zeros((4, 1)), "total is not a float64 vector"),
        ([0.0] * 4, "total is not a float64 vector"),
        (np.zeros(4, ">f8"), "total is not a float64 vector"),
        (np.broadcast_to(np.zeros(1), 4), "total is read-only; pass np.zeros"),
    ],
)
def test_a_total_that_cannot_be_added_to_is_refused(total, complaint):
    for message in (GOOD, RawMessage(np.ones(4, np.float32))):
        with pytest.raises(ConfigError, match=complaint):
            accumulate(encode(message), total)


@pytest.mark.parametrize("weight", [np.nan, np.inf, -np.inf])
def test_a_weight_that_is_not_finite_is_refused_before_anything_is_added(weight):
    total = np.zeros(4)
    with pytest.raises(ConfigError, match=f"weight={weight} is not finite; choose a finite number"):
        accumulate(encode(GOOD), total, weight)
    assert not total.any()


def test_a_total_may_be_a_column_of_a_matrix():
    totals = np.zeros((4, 3))
    accumulate(encode(GOOD), totals[:, 1], 2.0)
    assert totals.tolist() == [[0, 0, 0], [0, 2, 0], [0, 0, 0], [0, -2, 0]]


def test_accumulating_is_linear_in_the_weight_where_nothing_rounds():
    message = arithmetic_message(200, 4, 3)  # units of 1 / 32
    payload = encode(message)
    total = np.zeros(200)
    for weight in (1.0, 2.0, -0.5, 0.25):
        accumulate(payload, total, weight)
    assert np.array_equal(total, 2.75 * message.dequantize().astype(np.float64))


def test_many_threads_encode_and_decode_what_one_does():
    messages = [gaussian_message(400, levels, seed=seed) for seed in range(4) for levels in (1, 40)]
    expected = [encode(message) for message in messages]
    start = threading.Barrier(4)

    def work(_):
        start.wait()
        return [(encode(message), decode(encode(message)) == message) for message in messages]

    with ThreadPoolExecutor(4) as pool:
        for result in pool.map(work, range(4)):
            assert result == [(payload, True) for payload in expected]


@pytest.mark.parametrize("weight", [None, "1", [], np.ones(2), 1j])
def test_a_weight_that_is_not_a_number_is_refused(weight):
    with pytest.raises(ConfigError, match=r"(?s)^weight=.* is not finite; choose a finite number"):
        accumulate(encode(GOOD), np.zeros(4), weight)


@pytest.mark.parametrize("bad", [None, 3, "payload", b"payload", [GOOD, None], np.zeros(3)], ids=str)
def test_what_is_not_a_list_of_messages_is_refused(bad):
    for measure in (encode_batch, codec.measure_batch):
        with pytest.raises(ConfigError, match=r"is not a list of messages; write \[m|is not a message; quantize"):
            measure(bad)
