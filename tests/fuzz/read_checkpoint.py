"""Coverage-guided fuzzing of checkpoint files (needs the package ``atheris``, which is not a dependency).

    python -m tests.fuzz.read_checkpoint tests/fuzz/corpora/checkpoint -max_total_time=600

Each input is tried as it is, with the checksum an attacker would add, and as a header (up to the first
newline) and array bytes in a well-formed file. A finding is anything but CheckpointError, or what was
read and does not survive being saved again.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from pathlib import Path

FOLDER = tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)


def check(data: bytes) -> None:
    """Raise AssertionError (or whatever escapes) if reading mistreats ``data``."""
    from fedpaq.storage.checkpoint import MAGIC, PRELUDE, VERSION

    text, _, body = data.partition(b"\n")
    framed = PRELUDE.pack(MAGIC, VERSION, len(text)) + text + body
    for content in (data, _sealed(data), _sealed(framed)):
        _check_file(content)


def _sealed(data: bytes) -> bytes:
    return data + hashlib.sha256(data).digest()


def _check_file(content: bytes) -> None:
    import numpy as np

    from fedpaq.errors import CheckpointError
    from fedpaq.run.history import from_columns, to_columns
    from fedpaq.storage import checkpoint

    path = Path(FOLDER.name) / "run.ckpt"
    path.write_bytes(content)
    try:
        header, arrays = checkpoint.read(path)
    except CheckpointError:
        return
    path.unlink()
    checkpoint.save(path, header, arrays)
    again_header, again = checkpoint.read(path)
    assert again_header == header and list(again) == list(arrays)
    assert all(again[name].tobytes() == arrays[name].tobytes() for name in arrays)
    try:
        records = from_columns(arrays, 1)
    except (ValueError, KeyError):
        return
    columns = to_columns(records)
    assert all(np.array_equal(columns[name], arrays[name], equal_nan=True) for name in columns)


def main() -> None:
    """Fuzz until told to stop."""
    import atheris
    from tests.fuzz.cpu_time import within_a_second

    with atheris.instrument_imports(include=["fedpaq.storage.checkpoint", "fedpaq.run.history", "json"]):
        pass
    check(b"{}")  # what is imported or compiled at first use is no hang
    atheris.Setup(sys.argv, within_a_second(check))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
