"""Lock: one process at a time works on one checkpoint.

The operating system keeps the lock (``filelock``: flock, or LockFileEx on Windows), so it ends with
its process, however that ends: no lock is ever stale. ``<name>.lock`` names the holder for the error
message and is removed at the end.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout, UnixFileLock

from fedpaq.errors import CheckpointError
from fedpaq.storage.atomic_file import StrPath, remove_partials


@contextmanager
def hold(path: StrPath) -> Iterator[None]:
    """Hold the checkpoint's lock, or raise CheckpointError that names the process holding it.

    What a killed run left half-written is removed on entry.
    """
    target = Path(os.path.realpath(path))
    file = target.with_name(f"{target.name}.lock")
    lock = FileLock(file, thread_local=False)
    try:
        target.parent.stat()  # filelock would make the folder
        lock.acquire(blocking=False)
    except Timeout:
        raise CheckpointError(
            f"checkpoint={str(path)!r} is in use by process {_holder(file)}; wait for it or choose another file"
        ) from None
    except OSError as error:
        raise CheckpointError(
            f"checkpoint={str(path)!r} cannot be locked ({error.strerror or error}); "
            "choose a folder that exists and can be written"
        ) from error
    try:
        if isinstance(lock, UnixFileLock):  # Windows lets nobody write into a locked file
            file.write_text(f"{os.getpid()}\n")
        remove_partials(target)
        yield
    finally:
        with suppress(OSError):  # Windows removes it only once it is free
            file.unlink()  # first, so that nobody can lock a file that is about to go
        lock.release()


def _holder(file: Path) -> str:
    try:
        return file.read_text().split()[0]
    except (OSError, ValueError, IndexError):
        return "unknown"
