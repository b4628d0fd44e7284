"""A Flower grid whose nodes are ClientApps in this process. Messages are serialized on the way."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

RAISED = 2  # Flower's code for an exception in the ClientApp
TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # as in a ServerApp's process


def carried(content: RecordDict) -> RecordDict:
    """Return the content as the other side sees it."""
    return recorddict_from_proto(recorddict_to_proto(content))


class InProcessGrid(Grid):
    """Nodes 1000, 1001, ...; node i runs ``app`` as ``partition-id=i``.

    ``meddle(client, reply)`` may change a reply, or return None to lose it. Nodes in ``offline``
    are not listed.
    """

    def __init__(self, app: ClientApp, num_nodes: int, *, run_config=None, partition_ids=None):
        self.app, self.num_nodes, self.run_config = app, num_nodes, run_config or {}
        self.partition_ids = list(range(num_nodes)) if partition_ids is None else partition_ids
        self.offline: set[int] = set()
        self.meddle: Callable[[int, Message], Message | None] = lambda _, reply: reply
        self.sent: list[Message] = []
        self._replies: dict[str, Message] = {}

    def set_run(self, run):
        """Nothing to do."""

    @property
    def run(self):
        """There is none."""
        raise NotImplementedError

    def create_message(self, *args, **kwargs):
        """Deprecated in Flower."""
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        """The nodes that are online."""
        return [1000 + i for i in range(self.num_nodes) if i not in self.offline]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Run the ClientApp on each message at once."""
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"message-{len(self.sent)}"
            self.sent.append(message)
            client = message.metadata.dst_node_id - 1000
            reply = self.meddle(client, self._answer(client, message))
            if reply is not None:
                self._replies[message.metadata.message_id] = reply
        return [message.metadata.message_id for message in self.sent]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Hand out the replies there are."""
        return [self._replies.pop(one) for one in message_ids if one in self._replies]

    def send_and_receive(self, messages, *, timeout=None):
        """As Flower's own strategies do it."""
        messages = list(messages)
        self.push_messages(messages)
        return list(self.pull_messages([message.metadata.message_id for message in messages]))

    def _answer(self, client: int, message: Message) -> Message:
        arrived = Message(carried(message.content), 0, message.metadata.message_type)
        arrived.metadata.__dict__.update(message.metadata.__dict__)
        config = {"num-partitions": self.num_nodes}
        if self.partition_ids[client] is not None:
            config["partition-id"] = self.partition_ids[client]
        context = Context(1, 1000 + client, config, RecordDict(), self.run_config)
        try:
            reply = self.app(arrived, context)
        except Exception as error:
            traceback.clear_frames(error.__traceback__)
            return Message(Error(RAISED, f"{type(error)}:<'{error}'>"), reply_to=message)
        if reply.has_content():
            reply.content = carried(reply.content)
        return reply
