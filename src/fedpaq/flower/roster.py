"""Roster: which client runs on which Flower node.

Each new node is asked who it is, and asked again where no answer comes. The draw of participants runs
over client numbers, so it is the same after a restart, when Flower's node ids have changed.
"""

import logging
import time
from collections.abc import Mapping, Set

from flwr.app import Error, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedpaq.errors import ConfigError
from fedpaq.flower import protocol
from fedpaq.flower.exchange import POLL_SECONDS, poll, send
from fedpaq.randomness import Key, sample_without_replacement

log = logging.getLogger("flwr")
NODE_UNAVAILABLE = 5  # Flower's error code for a node that went offline before it replied
MOD_FAILED = 6  # and for a mod that did not find what it expects
ASK_AGAIN = 90.0  # seconds until a node that has not said who it is is asked again: its app may have been lost
SAY_EVERY = 10.0  # seconds between two log lines while waiting for clients

NO_MOD = (
    "is quantize_mod missing? The strategy is FedPAQ, so the ClientApp must be "
    "ClientApp(mods=[fedpaq.flower.quantize_mod()]), with other mods after it"
)
ORDER = (
    "this mod comes before quantize_mod, which must be the first of the mods: the model is clipped or given noise "
    "before it is quantized; write mods=[quantize_mod(...), the other mod]"
)


class Roster:
    """The clients that have answered; nodes it does not know are asked."""

    def __init__(self) -> None:
        self._client_of: dict[int, int] = {}  # node -> client
        self._node_of: dict[int, int] = {}  # client -> node
        self._asked: dict[int, list[Message]] = {}  # node -> the open questions
        self._asked_at: dict[int, float] = {}  # node -> when it was asked last
        self._refused: dict[int, str] = {}  # node -> why it cannot take part
        self._claimed: dict[int, int] = {}  # refused node -> the client number that another node has
        self._expected: int | None = None  # how many clients are worth waiting for; None: before the first draw

    def gather(self, grid: Grid, wanted: int, least: int, patience: float) -> dict[int, int]:
        """Return {client: node} of those present, in client order.

        Wait until ``wanted`` clients are there. After ``patience`` seconds ``least`` are enough, and
        later calls do not wait for the missing ones again, though these may still join. Wait for
        ``least`` clients without limit, as Flower does.
        """
        start = said = time.monotonic()
        wanted = wanted if self._expected is None else min(wanted, self._expected)
        while True:
            present = self.present(grid)
            waited = time.monotonic() - start
            if len(present) >= wanted or (waited >= patience and len(present) >= least):
                break
            self._refuse_if_hopeless()
            if time.monotonic() - said >= SAY_EVERY:
                said = time.monotonic()
                log.info("waiting for clients: %d of %d present", len(present), wanted)
            time.sleep(POLL_SECONDS)
        if len(present) < wanted:
            log.warning("only %d of %d clients are present after %.0f s", len(present), wanted, waited)
        self._expected = len(present)
        return present

    def present(self, grid: Grid) -> dict[int, int]:
        """Return {client: node} of the connected nodes that have said who they are, in client order."""
        connected = set(grid.get_node_ids())
        self._reconsider(connected)
        overdue = {node for node, at in self._asked_at.items() if time.monotonic() - at >= ASK_AGAIN}
        answered = {*self._client_of, *self._refused}
        self._ask(grid, sorted(connected - answered - (self._asked_at.keys() - overdue)))
        self._listen(grid, connected)
        here = {client: node for client, node in self._node_of.items() if node in connected}
        return dict(sorted(here.items()))

    def _reconsider(self, connected: Set[int]) -> None:
        """Forget refusals whose reason may have passed: the node left, or the one that has its client number did."""
        for node in list(self._refused):
            holder = self._node_of[self._claimed[node]] if node in self._claimed else node
            if not {node, holder} <= connected:
                del self._refused[node]
                self._claimed.pop(node, None)

    def _ask(self, grid: Grid, nodes: list[int]) -> None:
        content = RecordDict({protocol.RECORD: protocol.question(protocol.WHO)})
        messages = [Message(content, node, MessageType.TRAIN) for node in nodes]
        send(grid, messages)
        for node, message in zip(nodes, messages, strict=True):
            self._asked.setdefault(node, []).append(message)
            self._asked_at[node] = time.monotonic()

    def _listen(self, grid: Grid, connected: Set[int]) -> None:
        for node, messages in list(self._asked.items()):
            reply = next(filter(None, (poll(grid, message) for message in messages)), None)
            if reply is not None:
                del self._asked[node], self._asked_at[node]
                self._note(node, reply, connected)

    def _note(self, node: int, reply: Message, connected: Set[int]) -> None:
        if reply.has_error() and reply.error.code == NODE_UNAVAILABLE:
            return  # it left; if it comes back it is asked again
        try:
            self._enter(node, _client_in(node, reply), connected)
        except ConfigError as error:
            self._refused[node] = str(error)
            log.warning("node=%d cannot take part: %s", node, error)

    def _enter(self, node: int, client: int, connected: Set[int]) -> None:
        before = self._node_of.get(client)
        if before in connected and self._expected is None:
            self._claimed[node] = client
            raise ConfigError(
                f"client={client} is already node={before}, which is connected; give every SuperNode its own "
                "partition-id in --node-config, or wait until that node is gone"
            )
        if before is not None:
            log.warning("client=%d is now node=%d instead of node=%d", client, node, before)
            del self._client_of[before]
            if before in connected:
                self._refused[before], self._claimed[before] = f"replaced by node={node}", client
        self._client_of[node], self._node_of[client] = client, node

    def _refuse_if_hopeless(self) -> None:
        if self._refused and not self._asked and not self._client_of:
            node, reason = next(iter(self._refused.items()))
            raise ConfigError(f"no node can take part; node={node}: {reason}")


def draw(present: Mapping[int, int], count: int, key: Key) -> dict[int, int]:
    """Return ``count`` of the clients present (all where there are fewer), drawn without replacement."""
    clients = list(present)
    drawn = sample_without_replacement(key, len(clients), min(count, len(clients)))
    return {clients[at]: present[clients[at]] for at in drawn}


def _advice(error: Error) -> str:
    """Say what to do about a client that failed to say who it is; fedpaq's own errors say it themselves."""
    if error.code == MOD_FAILED:
        return ORDER
    return "see the client's log" if "fedpaq.errors" in (error.reason or "") else NO_MOD


def _client_in(node: int, reply: Message) -> int:
    """Return the client number in a reply to WHO, or raise ConfigError with what is missing."""
    if reply.has_error():
        raise ConfigError(f"{reply.error.reason}; {_advice(reply.error)}")
    client = protocol.read_record(reply.content, f"its reply has no 'fedpaq' record; {NO_MOD}").get("client")
    if not isinstance(client, int) or not protocol.NO_CLIENT <= client < 2**32:
        raise ConfigError(f"client={client!r} in its reply is not a client number; choose 0..2^32-1")
    if client == protocol.NO_CLIENT:
        client = node % 2**32
        log.warning(
            "node=%d has no partition-id in its --node-config; it is client=%d while it stays registered, "
            "and draws are not reproducible in another run",
            node,
            client,
        )
    return client
