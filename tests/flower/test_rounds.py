"""Rounds: replies are counted, rejected or late."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpaq.flower.replies import Rules
from fedpaq.flower.rounds import OpenRound
from flower.made_replies import LAYOUT, closed_with, payload, plus, question, reply_to, update

pytestmark = pytest.mark.flower


def test_a_round_sorts_replies_into_counted_rejected_and_late_whatever_their_order():
    good = payload(update())
    closed = closed_with([(2, good), (0, good[:-2])])
    assert (closed.server_round, closed.asked, closed.late) == (3, [0, 1, 2], [1])
    assert [upload.client for upload in closed.counted] == [2] and list(closed.rejected) == [0]
    assert closed.mean.weight == 1


@given(st.permutations(range(5)))
@settings(max_examples=20, deadline=None)
def test_the_order_in_which_replies_arrive_changes_no_bit(order):
    replies = [(client, payload(update(client), client=client)) for client in range(5)]
    start = update(9)
    expected = closed_with(replies, range(5)).mean.apply(plus(start))[0]
    found = closed_with([replies[at] for at in order], range(5)).mean.apply(plus(start))[0]
    np.testing.assert_array_equal(found, expected)


def test_replies_to_other_questions_are_not_counted():
    stranger = reply_to(question(77), payload(update()))
    closed = OpenRound(1, {0: question(0)}).close([stranger], Rules(LAYOUT))
    assert closed.late == [0] and not closed.counted
