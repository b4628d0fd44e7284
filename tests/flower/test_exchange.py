"""Exchange: what is sent, and which replies count until the deadline."""

from __future__ import annotations

import httpx
import pytest
from flwr.app import Message, RecordDict

from fedpaq.flower import exchange, protocol
from flower.flower_apps import quantizing

pytestmark = pytest.mark.flower


def who_are_you(node):
    return Message(RecordDict({protocol.RECORD: protocol.question(protocol.WHO)}), node, "train")


def test_asking_nobody_sends_nothing_and_returns_at_once():
    grid = quantizing()
    assert exchange.ask(grid, [], 60.0) == [] and grid.sent == []


def test_asking_returns_a_reply_for_each_that_answered_by_the_deadline():
    grid = quantizing(4)
    grid.meddle = lambda client, reply: None if client == 2 else reply
    messages = [who_are_you(1000 + at) for at in range(4)]
    replies = exchange.ask(grid, messages, 0.02)
    assert [reply.content[protocol.RECORD]["client"] for reply in replies] == [0, 1, 3]
    asked = [messages[at].metadata.message_id for at in (0, 1, 3)]
    assert [reply.metadata.reply_to_message_id for reply in replies] == asked


def test_a_reply_that_comes_later_is_still_gathered():
    grid, delays = quantizing(1), iter([True, True, False])
    pull = grid.pull_messages
    grid.pull_messages = lambda ids: [] if next(delays) else pull(ids)
    assert len(exchange.ask(grid, [who_are_you(1000)], 60.0)) == 1


@pytest.mark.parametrize("error", [httpx.ConnectError("gone"), ConnectionResetError("gone"), TimeoutError("gone")])
def test_a_lost_connection_is_not_taken_for_a_bad_reply(error):
    grid = quantizing(1)

    def broken(_):
        raise error

    grid.pull_messages = broken
    with pytest.raises(type(error)):
        exchange.ask(grid, [who_are_you(1000)], 1.0)


def test_a_reply_that_cannot_be_unpacked_becomes_an_error_reply_with_the_reason():
    grid = quantizing(1)

    def broken(_):
        raise KeyError("children")

    grid.pull_messages = broken
    (reply,) = exchange.ask(grid, [who_are_you(1000)], 1.0)
    assert reply.has_error() and reply.error.code == exchange.UNREADABLE
    assert reply.error.reason == "the reply cannot be unpacked (KeyError: 'children')"
