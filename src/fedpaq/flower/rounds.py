"""A round: open while clients work, closed with the mean of the uploads that count."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from flwr.app import Message

from fedpaq.errors import WireFormatError
from fedpaq.flower.mean import RoundMean
from fedpaq.flower.replies import Rules, Upload
from fedpaq.server.aggregation import Aggregation

log = logging.getLogger("flwr")


@dataclass(frozen=True)
class OpenRound:
    """Who was asked, by which message."""

    server_round: int  # as Flower counts, from 1; FedPAQ's round is one less
    asked: dict[int, Message]  # client -> message, ascending

    def close(
        self, replies: Iterable[Message], rules: Rules, aggregation: Aggregation | None = None
    ) -> ClosedRound:
        """Add up, in client order, the replies that pass every check; keep why others did not.

        Only payloads wait in memory, not decoded updates: O(p) whatever the number of clients.
        """
        mean = RoundMean(rules.layout, aggregation)
        by_question = {reply.metadata.reply_to_message_id: reply for reply in replies}
        closed = ClosedRound(self.server_round, list(self.asked), [], {}, [], mean)
        for client, message in self.asked.items():
            reply = by_question.get(message.metadata.message_id)
            if reply is None:
                closed.late.append(client)
                continue
            try:
                upload = rules.read(client, reply)
                closed.mean.add(upload)
                closed.counted.append(upload)
            except WireFormatError as error:
                closed.rejected[client] = str(error)
        return closed


@dataclass(frozen=True)
class ClosedRound:
    """Whose upload counted, who was rejected and why, who was late."""

    server_round: int
    asked: list[int]
    counted: list[Upload]
    rejected: dict[int, str]
    late: list[int]
    mean: RoundMean

    def log(self) -> None:
        """Say whose upload did not count, and why."""
        for client, reason in self.rejected.items():
            log.warning("round=%d: client=%d rejected: %s", self.server_round, client, reason)
        for client in self.late:
            log.warning("round=%d: client=%d did not answer in time", self.server_round, client)
