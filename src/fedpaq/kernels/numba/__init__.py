"""COMPILED twins: numba kernels for what NumPy or Python would do slowly.

Nothing imports numba until ``load`` is first called, so ``import fedpaq`` stays lean. Each kernel
has a readable twin elsewhere (named in its docstring) that tests hold it to. Kernels carry
explicit signatures: importing their module compiles them, or loads machine code cached on disk,
and an import that takes more than a second is announced. Where numba is not installed, ``load``
returns None and the twins do the work.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
import threading
from typing import Any, ClassVar


@functools.cache
def load(name: str) -> Any:
    """Return the kernels of ``fedpaq.kernels.numba.<name>``, or None where numba is not installed."""
    if importlib.util.find_spec("numba") is None:
        return None
    with announced("preparing numeric kernels (compiled once, then cached on disk)"):
        return importlib.import_module(f"fedpaq.kernels.numba.{name}")


class announced:
    """Print ``what`` to standard error if the block takes more than a second; once in a process."""

    _said: ClassVar[set[str]] = set()

    def __init__(self, what: str, after_seconds: float = 1.0) -> None:
        self._timer = threading.Timer(after_seconds, self._say, [what])
        self._timer.daemon = True

    @classmethod
    def _say(cls, what: str) -> None:
        if what not in cls._said:
            cls._said.add(what)
            print(f"fedpaq: {what} ...", file=sys.stderr, flush=True)

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *exc: object) -> None:
        self._timer.cancel()
