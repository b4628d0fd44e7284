"""A TCP proxy on loopback that counts the bytes of both directions, of all calls and of each kind of call."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections import defaultdict

import numpy as np


class ByteCounter:
    """Forwards 127.0.0.1:port to ``target`` on the same host; ``up`` counts towards the target.

    ``calls`` tells the bytes apart by what HTTP/1.1 asked for: path -> [calls, bytes up, bytes down]. A connection has
    one call at a time, so what comes down belongs to the last request. Other protocols count as one call, "other".
    """

    def __init__(self, target: int) -> None:
        self._target, self._lock = target, threading.Lock()
        self.calls: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])

    @property
    def up(self) -> int:
        """Bytes towards the target so far."""
        return sum(up for _, up, _ in self.read().values())

    @property
    def down(self) -> int:
        """Bytes from the target so far."""
        return sum(down for _, _, down in self.read().values())

    def read(self) -> dict[str, np.ndarray]:
        """Return calls, bytes up and bytes down so far, by path."""
        with self._lock:
            return {path: np.array(counts, float) for path, counts in self.calls.items()}

    def __enter__(self) -> ByteCounter:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the listener was closed
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client, self._connect() as server:
            selector = selectors.DefaultSelector()
            selector.register(client, selectors.EVENT_READ, (server, 1))
            selector.register(server, selectors.EVENT_READ, (client, 2))
            path, last = "other", 2
            while True:
                for ready, _ in selector.select():
                    source: socket.socket = ready.fileobj  # type: ignore[assignment]
                    data = source.recv(1 << 16)
                    if not data:
                        return
                    other, direction = ready.data
                    begins = direction == 1 and last == 2  # a request after a response
                    path, last = asked_for(data) if begins else path, direction
                    with self._lock:
                        self.calls[path][0] += begins
                        self.calls[path][direction] += len(data)
                    other.sendall(data)

    def _connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self._target))


def asked_for(request: bytes) -> str:
    """Return the last part of the path in an HTTP/1.1 request, or "other".

    >>> asked_for(b"POST /v1/fleet/pull-object HTTP/1.1\\r\\nHost: a")
    'pull-object'
    """
    words = request.split(b"\r\n", 1)[0].split(b" ")
    is_http = len(words) == 3 and words[2].startswith(b"HTTP/1")
    return words[1].decode("ascii", "replace").split("?")[0].rsplit("/", 1)[-1] if is_http else "other"


def less(now: dict[str, np.ndarray], before: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return what was counted since ``before``, or with a rate times seconds what was counted beyond it."""
    return {path: counts - before.get(path, 0) for path, counts in now.items()}


def added(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the sum by path."""
    paths = sorted({path for part in parts for path in part})
    return {path: sum((part.get(path, np.zeros(3)) for part in parts), np.zeros(3)) for path in paths}
