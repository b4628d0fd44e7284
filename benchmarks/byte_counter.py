"""A TCP proxy on loopback that counts the bytes of both directions."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading


class ByteCounter:
    """Forwards 127.0.0.1:port to ``target`` on the same host; ``up`` counts towards the target."""

    def __init__(self, target: int) -> None:
        self._target, self.up, self.down = target, 0, 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])

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
            selector.register(client, selectors.EVENT_READ, (server, "up"))
            selector.register(server, selectors.EVENT_READ, (client, "down"))
            while True:
                for ready, _ in selector.select():
                    source: socket.socket = ready.fileobj  # type: ignore[assignment]
                    data = source.recv(1 << 16)
                    if not data:
                        return
                    other, direction = ready.data
                    setattr(self, direction, getattr(self, direction) + len(data))
                    other.sendall(data)

    def _connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self._target))
