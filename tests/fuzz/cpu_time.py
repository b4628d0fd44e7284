"""A limit on processor time: a busy machine must not look like a hang, nor hide one."""

from __future__ import annotations

import time
from collections.abc import Callable

LIMIT_SECONDS = 1.0


def within_a_second(check: Callable[[bytes], None]) -> Callable[[bytes], None]:
    """Return ``check`` with an AssertionError for an input that takes over a second of processor time."""

    def timed(data: bytes) -> None:
        start = time.process_time()
        check(data)
        taken = time.process_time() - start
        assert taken < LIMIT_SECONDS, f"an input of {len(data)} bytes took {taken:.1f} s"

    return timed
