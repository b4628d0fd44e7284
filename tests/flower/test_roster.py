"""Roster: which client is behind which node, and who is waited for."""

from __future__ import annotations

import logging

import pytest
from flwr.app import ConfigRecord, Error, Message

from fedpaq import ConfigError
from fedpaq.flower import protocol, roster
from fedpaq.randomness import Key
from flower.flower_apps import quantizing

pytestmark = pytest.mark.flower


def test_each_node_is_asked_once_who_it_is():
    grid, book = quantizing(3), roster.Roster()
    for _ in range(3):
        assert book.present(grid) == {0: 1000, 1: 1001, 2: 1002}
    assert len(grid.sent) == 3


def test_clients_come_in_the_order_of_their_numbers_not_of_nodes():
    grid = quantizing(3, partition_ids=[9, 4, 7])
    assert list(roster.Roster().present(grid).items()) == [(4, 1001), (7, 1002), (9, 1000)]


def test_a_node_that_went_offline_before_it_answered_is_asked_again():
    grid, book = quantizing(1), roster.Roster()
    grid.meddle = lambda _, reply: Message(Error(roster.NODE_UNAVAILABLE, "offline"), reply_to=grid.sent[-1])
    assert book.present(grid) == {}
    grid.meddle = lambda _, reply: reply
    assert book.present(grid) == {0: 1000} and len(grid.sent) == 2


def answering(client):
    """A grid of one node whose answer to "who are you?" is ``client``."""
    grid = quantizing(1)

    def meddle(_, reply):
        reply.content[protocol.RECORD] = ConfigRecord({"version": protocol.VERSION, "client": client})
        return reply

    grid.meddle = meddle
    return grid


@pytest.mark.parametrize("client", ["seven", -2, 2**32, 1.5, b"7"])
def test_an_answer_that_is_no_client_number_refuses_the_node_by_name(client):
    with pytest.raises(ConfigError) as refused:
        roster.Roster().gather(answering(client), 1, 1, 0.0)
    assert str(refused.value).startswith("no node can take part; node=1000: client=")
    assert "choose 0..2^32-1" in str(refused.value)


def test_the_largest_client_number_is_allowed():
    assert roster.Roster().present(answering(2**32 - 1)) == {2**32 - 1: 1000}


def test_after_patience_the_least_is_enough_and_the_missing_are_not_awaited_again(caplog):
    grid, book = quantizing(3), roster.Roster()
    grid.offline = {2}
    with caplog.at_level(logging.WARNING, logger="flwr"):
        assert list(book.gather(grid, 3, 1, 0.01)) == [0, 1]
    assert "only 2 of 3 clients are present" in caplog.text
    caplog.clear()
    assert list(book.gather(grid, 3, 1, 2.0)) == [0, 1]
    assert caplog.text == ""  # at once: nobody was awaited
    grid.offline = set()
    assert list(book.gather(grid, 3, 1, 2.0)) == [0, 1, 2]  # it may still join


def test_with_enough_clients_patience_is_not_needed():
    assert list(roster.Roster().gather(quantizing(4), 2, 1, 2.0)) == [0, 1, 2, 3]


def test_a_draw_returns_distinct_clients_with_their_nodes_and_all_where_there_are_fewer():
    present = {4: 1001, 7: 1002, 9: 1000}
    found = roster.draw(present, 2, Key(seed=1, round=3))
    assert found.items() <= present.items() and len(found) == 2
    assert found == roster.draw(present, 2, Key(seed=1, round=3))
    assert roster.draw(present, 8, Key(seed=1)) == present


def test_a_node_whose_answer_is_lost_is_asked_again(monkeypatch):
    grid, book = quantizing(2), roster.Roster()
    grid.meddle = lambda client, reply: None if client == 1 and len(grid.sent) <= 2 else reply
    assert book.present(grid) == {0: 1000}
    assert book.present(grid) == {0: 1000} and len(grid.sent) == 2  # not at once
    monkeypatch.setattr(roster, "ASK_AGAIN", 0.0)
    assert book.present(grid) == {0: 1000, 1: 1001} and len(grid.sent) == 3
    assert book.present(grid) == {0: 1000, 1: 1001} and len(grid.sent) == 3


def test_a_node_that_registers_again_before_the_first_draw_takes_over_its_client(caplog):
    grid, book = quantizing(2, partition_ids=[7, 7]), roster.Roster()
    grid.offline = {1}
    assert book.present(grid) == {7: 1000}
    grid.offline = {0}
    assert book.present(grid) == {7: 1001} and list(book.gather(grid, 1, 1, 0.0)) == [7]
    assert "client=7 is now node=1001 instead of node=1000" in caplog.text


def test_a_node_refused_for_another_s_sake_is_asked_again_when_that_one_has_left(caplog):
    grid, book = quantizing(2, partition_ids=[7, 7]), roster.Roster()
    for _ in range(3):
        assert book.present(grid) == {7: 1000} and len(grid.sent) == 2  # not asked while the other is there
    assert "node=1001 cannot take part: client=7 is already node=1000, which is connected" in caplog.text
    grid.offline = {0}
    assert book.present(grid) == {7: 1001} and len(grid.sent) == 3
    grid.offline = set()
    for _ in range(3):
        assert book.present(grid) == {7: 1001} and len(grid.sent) == 4  # it came back: asked, and now refused itself


def test_a_refused_node_that_left_and_came_back_is_asked_again():
    grid, book = answering("seven"), roster.Roster()
    assert book.present(grid) == {}
    grid.meddle, grid.offline = (lambda _, reply: reply), {0}
    assert book.present(grid) == {}
    grid.offline = set()
    assert book.present(grid) == {0: 1000}
