"""AtomicFile: a file is replaced in one step, or not at all.

The new content is written beside its target, flushed to the disk and renamed over it, so that a
reader, a crash or a full disk finds the old file or the whole new one.
"""

import contextlib
import glob
import os
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any

StrPath = str | os.PathLike[str]


def atomic_write(path: StrPath, data: bytes) -> None:
    """Write a file in one step: a reader, or a crash, sees the old file or the whole new one.

    Devices and pipes (``/dev/stdout``) are written to as they are.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        target.write_bytes(data)
        return
    replace(target, [data])


def replace(target: Path, chunks: Iterable[Any], kept_as: Path | None = None) -> None:
    """Write a new file over ``target`` in one step; the old one stays under the name ``kept_as``, if given."""
    partial = _beside(target)
    try:  # from before the file exists: a signal may come between any two calls
        write_new(partial, chunks)
        if kept_as is not None and target.exists():
            keep(target, kept_as)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    sync_folder(target.parent)


def remove_partials(path: StrPath) -> None:
    """Remove what a killed writer of ``path`` left behind; call it only while holding the lock."""
    target = Path(os.path.realpath(path))
    for partial in target.parent.glob(f".{glob.escape(target.name)}.*.part"):
        partial.unlink(missing_ok=True)


def write_new(path: Path, chunks: Iterable[Any]) -> None:
    """Write and fsync a new file."""
    # O_EXCL: never write through a link someone else has put there.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    with open(descriptor, "wb") as stream:
        for chunk in chunks:
            stream.write(chunk)
        stream.flush()
        os.fsync(stream.fileno())


def keep(target: Path, name: Path) -> None:
    """Give the file a second name, replacing what had it; ``target`` itself never goes missing.

    A disk without hard links gets the file moved, and a crash right then leaves only ``name``.
    """
    link = _beside(target)
    try:
        try:
            os.link(target, link)
        except OSError:
            target.replace(name)
            return
        link.replace(name)
    finally:
        link.unlink(missing_ok=True)  # still there where both were one file already


def _beside(target: Path) -> Path:
    return target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}.part")


def sync_folder(folder: Path) -> None:
    """Make a rename survive a power cut, on systems that can sync a folder."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
