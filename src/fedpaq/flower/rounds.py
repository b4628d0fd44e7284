"""A round: open while clients work, closed with the mean of the uploads that count."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Message, MessageType, RecordDict

from fedpaq.errors import WireFormatError
from fedpaq.flower import protocol
from fedpaq.flower.layout import Layout
from fedpaq.flower.mean import RoundMean
from fedpaq.flower.replies import Rules, Upload
from fedpaq.server.aggregation import Aggregation

log = logging.getLogger("flwr")


@dataclass(frozen=True)
class OpenRound:
    """Who was asked, by which message."""

    server_round: int  # as Flower counts, from 1; FedPAQ's round is one less
    asked: dict[int, Message]  # client -> message, ascending
    download_bytes: int = 0  # of the model, to all who were asked

    @classmethod
    def ask(
        cls,
        server_round: int,
        nodes: Mapping[int, int],
        contents: Mapping[int, Mapping[str, Any]],
        seed: int,
        layout: Layout,
        ttl: float,
    ) -> OpenRound:
        """Return the round with one message for each client of ``nodes`` {client: node}.

        ``contents`` {client: records} is what each receives: the model, or what it lacks of it, and the config;
        seed, round and number key a client's draws.
        """
        text, messages, download_bytes = layout.to_json(), {}, 0
        for client, node in nodes.items():
            asked = protocol.question(
                protocol.TRAIN,
                seed=str(seed),  # beyond the range of a record's integers
                round=server_round - 1,
                client=client,
                layout=text,
            )
            record = RecordDict({**contents[client], protocol.RECORD: asked})
            download_bytes += sum(len(array.data) for part in record.array_records.values() for array in part.values())
            kind, group = MessageType.TRAIN, str(server_round)
            messages[client] = Message(record, node, kind, ttl=ttl, group_id=group)
        return cls(server_round, messages, download_bytes)

    def close(self, replies: Iterable[Message], rules: Rules, aggregation: Aggregation | None = None) -> ClosedRound:
        """Add up, in client order, the replies that pass every check; keep why others did not.

        Only payloads wait in memory, not decoded updates: O(p) whatever the number of clients.
        """
        mean = RoundMean(rules.layout, aggregation)
        by_question = {reply.metadata.reply_to_message_id: reply for reply in replies}
        closed = ClosedRound(self.server_round, list(self.asked), [], {}, [], mean, self.download_bytes)
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
    download_bytes: int = 0

    def faults(self) -> list[str]:
        """Return whose upload did not count, and why."""
        rejected = [f"client={client} rejected: {reason}" for client, reason in self.rejected.items()]
        return rejected + [f"client={client} did not answer in time" for client in self.late]

    def log(self) -> None:
        """Say whose upload did not count, and why."""
        for fault in self.faults():
            log.warning("round=%d: %s", self.server_round, fault)


@dataclass(frozen=True, kw_only=True)
class RoundRecord:
    """What is kept of a round: who was asked, whose upload counted, and why others did not."""

    server_round: int  # as Flower counts, from 1; FedPAQ's round is one less
    asked: list[int]
    counted: list[int]
    rejected: dict[int, str]
    late: list[int]
    metrics: dict[str, Any]
    payload_bytes: int = 0  # of the uploads that counted
    exact_bytes: int = 0
    download_bytes: int = 0  # of the model, to all who were asked
    seconds: float = field(default=0.0, compare=False)  # from the first question to the mean
