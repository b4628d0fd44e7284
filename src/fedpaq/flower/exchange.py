"""Exchange: send messages through a Flower grid and gather the replies until a deadline.

Replies are pulled one message at a time: Flower unpacks a reply while pulling it, so one
malformed reply would raise and lose the others of the same pull.
"""

import time
from collections.abc import Callable, Sequence

import httpx
from flwr.app import Error, Message
from flwr.serverapp import Grid

POLL_SECONDS = 0.5
UNREADABLE = 0  # Flower's error code for "unknown"


def send(grid: Grid, messages: Sequence[Message]) -> None:
    """Push messages; each one's id is in its metadata afterwards."""
    if messages:
        grid.push_messages(messages)


def poll(grid: Grid, message: Message) -> Message | None:
    """Return the reply to a message if it has arrived; an error reply where it cannot be unpacked.

    Raise where the connection to the SuperLink is lost.
    """
    try:
        replies = list(grid.pull_messages([message.metadata.message_id]))
    except (httpx.HTTPError, OSError):
        raise
    except Exception as error:  # whatever a hostile reply makes Flower's unpacking raise
        reason = f"the reply cannot be unpacked ({type(error).__name__}: {error})"
        return Message(Error(UNREADABLE, reason), reply_to=message)
    return replies[0] if replies else None


def ask(
    grid: Grid, messages: Sequence[Message], seconds: float, again: Callable[[Message], Message | None] | None = None
) -> list[Message]:
    """Send messages and return the replies that came within ``seconds``.

    Where ``again`` makes another message of a reply, that is sent, and its reply counts.
    """
    send(grid, messages)
    waiting, replies = list(messages), []
    until = time.monotonic() + seconds
    while waiting:
        still = []
        for message in waiting:
            reply = poll(grid, message)
            more = again(reply) if reply is not None and again is not None else None
            if more is not None:
                send(grid, [more])
                still.append(more)
            elif reply is None:
                still.append(message)
            else:
                replies.append(reply)
        waiting = still
        left = until - time.monotonic()
        if left <= 0:
            break
        if waiting:
            time.sleep(min(POLL_SECONDS, left))
    return replies
