"""COMPILED twins: numba kernels for what NumPy or Python would do slowly.

Nothing imports numba until ``load`` is first called, so ``import fedpaq`` stays lean. Each kernel
has a readable twin elsewhere (named in its docstring), and tests compare the two. Kernels carry
explicit signatures: importing their module compiles them, or loads machine code cached on disk.
Compiling is announced. Where numba is not installed, ``load`` returns None and the twins do the work.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from typing import Any


@functools.cache
def load(name: str) -> Any:
    """Return the kernels of ``fedpaq.kernels.numba.<name>``, or None where numba is not installed."""
    if importlib.util.find_spec("numba") is None:
        return None
    from numba.core.event import install_listener

    with install_listener("numba:compile", _announcer()):
        return importlib.import_module(f"fedpaq.kernels.numba.{name}")


@functools.cache
def _announcer() -> Any:
    """Return a listener that says once per process that kernels are being compiled."""
    from numba.core.event import Listener

    class Announcer(Listener):  # type: ignore[misc]
        said = False

        def on_start(self, event: Any) -> None:
            if not self.said:
                self.said = True
                text = "fedpaq: preparing numeric kernels (compiled once, then cached on disk) ..."
                print(text, file=sys.stderr, flush=True)

        def on_end(self, event: Any) -> None:
            pass

    return Announcer()
