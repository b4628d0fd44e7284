"""Interrupts: SIGINT and SIGTERM end a command at once, in order, with exit code 130 or 143."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM


@contextmanager
def orderly_end(advice: str = "", reports: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Let the block unwind on either signal (locks released, files whole), then say how to continue.

    Of several processes that end together only the one whose ``reports()`` is true says so.
    """
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    except KeyboardInterrupt:
        _leave("interrupted", INTERRUPTED, advice, reports)
    except SystemExit as end:
        if end.code != TERMINATED:
            raise
        _leave("terminated", TERMINATED, advice, reports)
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminate(number: int, frame: object) -> NoReturn:
    raise SystemExit(TERMINATED)


def _leave(what: str, code: int, advice: str, reports: Callable[[], bool]) -> NoReturn:
    if reports():
        print(f"fedpaq: {what}{'; ' if advice else ''}{advice}", file=sys.stderr)
    raise SystemExit(code) from None
