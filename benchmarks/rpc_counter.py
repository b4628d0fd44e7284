"""RpcCounter: which remote calls the bytes between SuperNodes and SuperLink belong to.

Reads the HTTP/2 frames of plain gRPC connections: a HEADERS frame names a stream's call, and every frame counts for
its stream's call, in both directions. What belongs to no call (settings, pings, windows) is counted as such.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable

import hpack
import hyperframe.frame as h2

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_HEADER = 9
OTHER = "connection"


class RpcCounter:
    """Bytes up and down, and number, of each call; ``observer`` is for ``ByteCounter``."""

    def __init__(self) -> None:
        self.totals: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])  # call -> [up, down, calls]
        self._lock = threading.Lock()

    def observer(self) -> Callable[[str, bytes], None]:
        """Return what watches one connection."""
        calls: dict[int, str] = {}
        ways = {"up": _Way(PREFACE), "down": _Way(b"")}

        def observe(direction: str, data: bytes) -> None:
            for frame, size in ways[direction].frames(data):
                headers = ways[direction].headers(frame)
                with self._lock:
                    if b":path" in headers:
                        calls[frame.stream_id] = headers[b":path"].decode().rsplit("/", 1)[-1]
                        self.totals[calls[frame.stream_id]][2] += 1
                    call = calls.get(frame.stream_id, OTHER)
                    self.totals[call][0 if direction == "up" else 1] += size

        return observe


class _Way:
    """One direction of a connection."""

    def __init__(self, preface: bytes) -> None:
        self._left, self._preface = b"", preface
        self._decoder = hpack.Decoder()

    def frames(self, data: bytes):
        """Yield the frames that are complete, with their bytes on the wire."""
        self._left += data
        if self._preface and len(self._left) >= len(self._preface):
            self._left, self._preface = self._left.removeprefix(self._preface), b""
        while not self._preface and len(self._left) >= FRAME_HEADER:
            frame, length = h2.Frame.parse_frame_header(memoryview(self._left)[:FRAME_HEADER])
            end = FRAME_HEADER + length
            if len(self._left) < end:
                return
            frame.parse_body(memoryview(self._left)[FRAME_HEADER:end])
            self._left = self._left[end:]
            yield frame, end

    def headers(self, frame: h2.Frame) -> dict[bytes, bytes]:
        """Return the headers in a frame; each block must be decoded, since the coder learns from it."""
        if not isinstance(frame, h2.HeadersFrame):
            return {}
        return dict(self._decoder.decode(frame.data, raw=True))
