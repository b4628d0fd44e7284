"""Corpus: Python's own standard library as text, one client per file. It is wherever Python is.

Its licence is Python's (PSF-2.0). Versions of Python differ in it, so results name the version and a digest.
"""

from __future__ import annotations

import hashlib
import platform
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedpaq.arrays import Int64
from fedpaq.errors import DatasetError

CLIENTS, MOST_BYTES = 80, 96 * 1024  # the longest files, and what is read of each
TEST_SHARE = 0.1  # of the windows of each file, its last ones
LEFT_OUT = {  # tests, programs, other people's packages: often not installed, or not the library
    "test", "tests", "idlelib", "turtledemo", "lib2to3", "ensurepip", "pydoc_data", "site-packages", "dist-packages",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Corpus:
    """Windows of bytes, file after file; those for the test come after all others."""

    windows: Int64  # (windows, length + 1): the last byte is only predicted
    sizes: list[int]  # training windows of each client
    name: str

    @property
    def num_training(self) -> int:
        """How many windows are trained on."""
        return sum(self.sizes)


def library(length: int, clients: int = CLIENTS) -> Corpus:
    """Return windows of ``length`` bytes of the longest files of the library."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = [path for path in sorted(root.rglob("*.py")) if not LEFT_OUT & set(path.relative_to(root).parts)]
    longest = sorted(files, key=lambda path: (-path.stat().st_size, path))[:clients]
    texts = [path.read_bytes()[:MOST_BYTES] for path in sorted(longest)]
    if len(texts) < clients or min(map(len, texts)) < 10 * (length + 1):
        raise DatasetError(f"Python's library at {root} has no {clients} files that are long enough; install all of it")
    training, held_out = [], []
    for text in texts:
        count = (len(text) - 1) // length
        starts = length * np.arange(count)[:, None] + np.arange(length + 1)
        windows = np.frombuffer(text, np.uint8)[starts].astype(np.int64)
        kept = count - max(1, int(TEST_SHARE * count))
        training.append(windows[:kept])
        held_out.append(windows[kept:])
    digest = hashlib.sha256(b"\0".join(texts)).hexdigest()[:12]
    name = f"the standard library of Python {platform.python_version()}, {clients} files, sha256 {digest}"
    return Corpus(np.concatenate([*training, *held_out]), [len(each) for each in training], name)
