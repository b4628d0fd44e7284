"""Replies made by hand: payloads, questions and what a client might answer."""

from __future__ import annotations

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

from fedpaq import Identity, Key, LowPrecision, codec
from fedpaq.flower import protocol
from fedpaq.flower.layout import Layout
from fedpaq.flower.replies import Rules
from fedpaq.flower.rounds import OpenRound
from flower.flower_apps import record

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


def closed_with(replies, clients=(0, 1, 2)):
    asked = {client: question(client) for client in clients}
    return OpenRound(3, asked).close([reply_to(asked[client], data) for client, data in replies], Rules(LAYOUT))


def plus(params):
    """Return what moves params by a mean, as dense downloads do."""

    def move(mean):
        with np.errstate(over="ignore"):
            return (params + mean).astype(np.float32)

    return move
