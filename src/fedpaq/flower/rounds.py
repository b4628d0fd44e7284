"""A round: open while clients work, closed with the mean of the uploads that count."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Message, MessageType, RecordDict

from fedpaq.errors import WireFormatError
from fedpaq.flower import protocol
from fedpaq.flower.downloads import Downloads, Sent
from fedpaq.flower.layout import Layout
from fedpaq.flower.mean import RoundMean
from fedpaq.flower.replies import Rules, Upload
from fedpaq.server.aggregation import Aggregation

log = logging.getLogger("flwr")


@dataclass
class Questions:
    """Makes the messages of a round, for training or for evaluation.

    ``content`` is what all clients receive beside the model; seed, round and number key a client's draws.
    """

    kind: str
    server_round: int
    content: Mapping[str, Any]
    model: Callable[[int, bool], Sent]  # the model for a client, maybe whole
    seed: int
    layout: Layout
    ttl: float
    sent_bytes: dict[int, int] = field(default_factory=dict)  # of the models, by client
    sent_whole: set[int] = field(default_factory=set)  # clients that said they needed it

    def ask(self, client: int, node: int, *, whole: bool = False) -> Message:
        """Return the message for one client."""
        sent = self.model(client, whole)
        self.sent_bytes[client] = self.sent_bytes.get(client, 0) + sent.nbytes
        asked = protocol.question(
            protocol.TRAIN if self.kind == MessageType.TRAIN else protocol.EVALUATE,
            seed=str(self.seed),  # beyond the range of a record's integers
            round=self.server_round - 1,
            client=client,
            layout=self.layout.to_json(),
            **sent.fields,
        )
        record = RecordDict({**sent.records, **self.content, protocol.RECORD: asked})
        return Message(record, node, self.kind, ttl=self.ttl, group_id=str(self.server_round))


@dataclass(frozen=True)
class OpenRound:
    """Who was asked, by which message."""

    server_round: int  # as Flower counts, from 1; FedPAQ's round is one less
    asked: dict[int, Message]  # client -> message, ascending
    questions: Questions | None = None

    @classmethod
    def ask(cls, server_round: int, nodes: Mapping[int, int], questions: Questions) -> OpenRound:
        """Return the round with one message for each client of ``nodes`` {client: node}."""
        return cls(server_round, {client: questions.ask(client, node) for client, node in nodes.items()}, questions)

    def client_of(self, reply: Message) -> int | None:
        """Return who sent a reply, if it was asked in this round."""
        question = reply.metadata.reply_to_message_id
        return next((client for client, asked in self.asked.items() if asked.metadata.message_id == question), None)

    def again(self, reply: Message) -> Message | None:
        """Return the message with the whole model for a client that says it needs it; that reply counts.

        None: the client does not say so, was not asked in this round, or had the whole model already.
        """
        client, record = self.client_of(reply), protocol.record_in(reply)
        if client is None or "needs" not in record:
            return None
        log.warning("client=%d gets the whole model: %s", client, record["needs"])
        if self.questions is None or client in self.questions.sent_whole:
            return None
        self.questions.sent_whole.add(client)
        self.asked[client] = self.questions.ask(client, self.asked[client].metadata.dst_node_id, whole=True)
        return self.asked[client]

    def heed(self, replies: Iterable[Message], downloads: Downloads | None) -> None:
        """Note what the clients say they hold now."""
        if downloads is None:
            return
        for reply in replies:
            client = self.client_of(reply)
            if client is not None:
                downloads.answered(client, protocol.record_in(reply))

    def close(
        self,
        replies: Iterable[Message],
        rules: Rules,
        aggregation: Aggregation | None = None,
        held: bytes | None = None,
    ) -> ClosedRound:
        """Add up, in client order, the replies that pass every check; keep why others did not.

        ``held`` are the exact arrays that the clients were sent.
        Only payloads wait in memory, not decoded updates: O(p) whatever the number of clients.
        """
        mean = RoundMean(rules.layout, aggregation, held)
        by_question = {reply.metadata.reply_to_message_id: reply for reply in replies}
        downloads = {} if self.questions is None else self.questions.sent_bytes
        closed = ClosedRound(self.server_round, list(self.asked), [], {}, [], mean, list(downloads.values()))
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
    downloads: list[int] = field(default_factory=list)  # bytes of the model, to each client that was asked

    @property
    def download_bytes(self) -> int:
        """The bytes of the models sent."""
        return sum(self.downloads)

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
    download_bytes: int = 0  # of the model, to all who were asked to train
    evaluation_bytes: int = 0  # of the model, to all who were asked to evaluate
    seconds: float = field(default=0.0, compare=False)  # from the first question to the mean
