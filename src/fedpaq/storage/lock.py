"""RunLock: one process at a time on one checkpoint.

The lock is the operating system's (flock), so it goes with its process, however that ends: there
is no stale lock. ``<name>.lock`` names the holder for the error message, and is removed at the end.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedpaq.errors import CheckpointError
from fedpaq.storage.atomic_file import StrPath, remove_partials

try:
    import fcntl
except ImportError:  # Windows: no lock there, as documented
    fcntl = None  # type: ignore[assignment]


@contextmanager
def hold(path: StrPath) -> Iterator[None]:
    """Hold the checkpoint's lock, or raise CheckpointError naming the process that does.

    What a killed run left half-written is cleared away on entry.
    """
    target = Path(os.path.realpath(path))
    lock = target.with_name(f"{target.name}.lock")
    descriptor = _acquire(path, lock)
    try:
        remove_partials(target)
        yield
    finally:
        lock.unlink(missing_ok=True)  # before the lock goes, so that nobody locks a removed file
        os.close(descriptor)


def _acquire(path: StrPath, lock: Path) -> int:
    while True:
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise CheckpointError(
                f"checkpoint={str(path)!r} cannot be locked ({error.strerror or error}); "
                "choose a folder that exists and can be written"
            ) from error
        if not _lock(descriptor):
            holder = os.read(descriptor, 32).decode("ascii", "replace").strip() or "unknown"
            os.close(descriptor)
            raise CheckpointError(
                f"checkpoint={str(path)!r} is in use by process {holder}; wait for it or choose another file"
            )
        if _is_current(descriptor, lock):
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()}\n".encode())
            return descriptor
        os.close(descriptor)  # its holder removed it between our open and our lock: try the new one


def _lock(descriptor: int) -> bool:
    if fcntl is None:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_current(descriptor: int, lock: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(lock))
    except FileNotFoundError:
        return False
