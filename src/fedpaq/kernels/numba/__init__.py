"""COMPILED twins: numba kernels for what NumPy or Python would do slowly.

Nothing imports numba until ``load`` is first called, so ``import fedpaq`` stays lean. Each kernel
has a readable twin elsewhere (named in its docstring), and tests compare the two. A kernel is compiled, or its
machine code read from disk, when it is first called: nobody waits for kernels that a run does not use.
Compiling is announced. Where numba is not installed, ``load`` returns None and the twins do the work.
"""

import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

from fedpaq.kernels.threads import spread


@functools.cache
def load(name: str) -> Any:
    """Return the kernels of ``fedpaq.kernels.numba.<name>``, or None where numba is not installed."""
    if importlib.util.find_spec("numba") is None:
        return None
    return importlib.import_module(f"fedpaq.kernels.numba.{name}")


def prepare(name: str) -> Any:
    """Load kernels and have all of them compiled, for every signature."""
    kernels = load(name)
    for found in list(vars(kernels).values()) if kernels else ():
        if isinstance(found, Kernel):
            for kind in found.signatures:
                found.compile(kind)
    return kernels


class Kernel:
    """A function with its signatures, which Python calls."""

    def __init__(self, function: Callable[..., Any], signatures: dict[str, Any], by: int | None, jobs: Any) -> None:
        self.py_func, self.signatures, self._by, self._jobs = function, signatures, by, jobs
        self._compiled: dict[str, Callable[..., Any]] = {}
        functools.update_wrapper(self, function)

    def __call__(self, *arguments: Any) -> Any:
        """Call the machine code for these arguments, on threads if there is much to do."""
        code = self._code_for(arguments)
        return code(*arguments) if self._jobs is None else spread(code, arguments, *self._jobs(*arguments))

    def alone(self, *arguments: Any) -> Any:
        """Call the machine code for all jobs at once, on this thread."""
        return self._code_for(arguments)(*arguments, 0, self._jobs(*arguments)[0])

    def _code_for(self, arguments: tuple[Any, ...]) -> Callable[..., Any]:
        kind = "" if self._by is None else arguments[self._by].dtype.char
        return self._compiled.get(kind) or self.compile(kind)

    def compile(self, kind: str) -> Callable[..., Any]:
        """Return the machine code of one signature, compiled if the disk does not have it."""
        from numba import njit
        from numba.core.event import install_listener

        with install_listener("numba:compile", _announcer()):
            self._compiled[kind] = njit(self.signatures[kind], cache=True, nogil=True)(self.py_func)
        return self._compiled[kind]


def kernel(signature: Any, by: int | None = None, jobs: Any = None) -> Callable[[Callable[..., Any]], Kernel]:
    """Return a decorator for a kernel that Python calls.

    ``signature`` may be one for each character of the dtype of argument ``by``. A kernel with ``jobs`` has two more
    parameters, the first job to do and the one to stop at; ``jobs(*arguments)`` returns how many there are, and the
    nanoseconds that all of them take, more or less.
    """
    return lambda function: Kernel(function, {"": signature} if by is None else signature, by, jobs)


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
