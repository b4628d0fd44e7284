"""Checkpoint: one file that is whole or absent, whatever happens while it is written.

    magic "FEDPAQCK" | version u16 | 0 u16 | header length u32        16 bytes, little-endian
    header: JSON {"header": what the caller gave, "arrays": [[name, dtype, shape], ...]}
    the arrays' bytes, one after another, little-endian
    SHA-256 of everything before it                                   32 bytes

A file is written beside its target, flushed to the disk and renamed over it; the one it replaces
stays as ``<name>.previous``, and there is no moment without a checkpoint of its own name. Nothing is
pickled, and no size in a file is believed before it has been held against the length of the file.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from fedpaq.errors import CheckpointError
from fedpaq.storage import strict_json
from fedpaq.storage.atomic_file import StrPath, keep, sync_folder, write_beside

MAGIC = b"FEDPAQCK"
VERSION = 1
PRELUDE = struct.Struct("<8sHHI")
DIGEST_BYTES = 32
MAX_HEADER_BYTES = 2**24
MAX_ARRAYS = 1024
MAX_BYTES = 2**34
DTYPES = ("<f4", "<f8", "<i4", "<i8", "<u4", "<u8", "|i1", "|u1", "|b1")

Arrays = dict[str, npt.NDArray[Any]]


def save(path: StrPath, header: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write a checkpoint in one step and keep the one before as ``<name>.previous``.

    ``header`` holds plain JSON values. A failure (disk full, read-only folder) raises
    CheckpointError and leaves the old checkpoint as it was.
    """
    target = Path(os.path.realpath(path))
    stored = {name: _little_endian(name, values) for name, values in arrays.items()}
    chunks: list[Any] = [_front(header, stored), *(_bytes_of(values) for values in stored.values())]
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    if target.exists():
        _require_own(target)
    try:
        partial = write_beside(target, [*chunks, digest.digest()])
        try:
            if target.exists():
                keep(target, previous(target))
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
        sync_folder(target.parent)
    except OSError as error:
        raise CheckpointError(
            f"checkpoint={str(path)!r} cannot be written ({error.strerror or error}); what was saved before "
            "is untouched: make room or choose another folder, then resume"
        ) from error


def load(path: StrPath, *, max_bytes: int = MAX_BYTES) -> tuple[dict[str, Any], Arrays]:
    """Return (header, arrays) of the newest good checkpoint.

    If the newest is damaged, foreign or from a future version, the previous one is returned with
    a warning and the refused file is kept as ``<name>.refused``, so that no save can replace the
    last good file by a bad one. With no good file, CheckpointError says what is wrong.
    """
    target = Path(os.path.realpath(path))
    try:
        return read(target, max_bytes=max_bytes)
    except CheckpointError as error:
        if not previous(target).exists():
            raise
        try:
            found = read(previous(target), max_bytes=max_bytes)
        except CheckpointError:
            raise error from None
        if target.exists():
            target.replace(target.with_name(f"{target.name}.refused"))
            warnings.warn(f"{error}; using {previous(target).name} instead", stacklevel=2)
        return found


def read(path: StrPath, *, max_bytes: int = MAX_BYTES) -> tuple[dict[str, Any], Arrays]:
    """Return (header, arrays) of exactly this file, or raise CheckpointError; nothing is changed."""
    if not Path(path).exists():
        raise CheckpointError(f"checkpoint={str(path)!r} does not exist; start one without resuming")
    if not Path(path).is_file():
        raise _refused(path, "is not a regular file")
    try:
        with open(path, "rb") as stream:
            return _parse(path, stream, os.fstat(stream.fileno()).st_size, max_bytes)
    except CheckpointError:
        raise
    except OSError as error:
        raise _refused(path, f"cannot be read ({error.strerror or error})") from error


def exists(path: StrPath) -> bool:
    """Tell whether there is a checkpoint to resume from, the newest or the one before it."""
    target = Path(os.path.realpath(path))
    return target.exists() or previous(target).exists()


def previous(path: StrPath) -> Path:
    """Return where the checkpoint before the newest is kept."""
    return Path(path).with_name(f"{Path(path).name}.previous")


def _require_own(target: Path) -> None:
    """Raise CheckpointError if ``target`` is a file of something else, which a save would replace."""
    if not target.is_file():
        raise _refused(target, "is not a regular file")
    with target.open("rb") as stream:
        if stream.read(len(MAGIC)) != MAGIC:
            raise _refused(target, "is not a fedpaq checkpoint, so it is not replaced; choose another file")


def _little_endian(name: str, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    stored = np.asarray(values, order="C")
    stored = stored.astype(stored.dtype.newbyteorder("<"), copy=False)
    if stored.dtype.str not in DTYPES:
        raise CheckpointError(f"{name}.dtype={values.dtype} cannot be saved; choose one of {', '.join(DTYPES)}")
    return stored


def _bytes_of(values: npt.NDArray[Any]) -> Any:
    return values.reshape(-1).view(np.uint8).data


def _front(header: Mapping[str, Any], arrays: Arrays) -> bytes:
    described = [[name, values.dtype.str, list(values.shape)] for name, values in arrays.items()]
    try:
        text = json.dumps({"header": dict(header), "arrays": described}, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"the header cannot be saved ({error}); use plain finite JSON values") from error
    if len(text) > MAX_HEADER_BYTES or len(arrays) > MAX_ARRAYS:
        raise CheckpointError(
            f"a header of {len(text)} bytes with {len(arrays)} arrays cannot be saved; "
            f"at most {MAX_HEADER_BYTES} bytes and {MAX_ARRAYS} arrays, so put long lists into arrays"
        )
    return PRELUDE.pack(MAGIC, VERSION, 0, len(text)) + text


def _parse(path: StrPath, stream: IO[bytes], size: int, max_bytes: int) -> tuple[dict[str, Any], Arrays]:
    front = stream.read(PRELUDE.size)
    if front[: len(MAGIC)] != MAGIC[: len(front)] or not front:
        raise _refused(path, "is not a fedpaq checkpoint")
    if size < PRELUDE.size + DIGEST_BYTES:
        raise _refused(path, f"is cut short at {size} bytes")
    _, version, reserved, header_bytes = PRELUDE.unpack(front)
    if version != VERSION or reserved:
        raise _refused(path, f"has version={version}.{reserved}, but this fedpaq reads {VERSION}; upgrade")
    if size > max_bytes:
        raise _refused(path, f"has {size} bytes, more than the {max_bytes} expected")
    body_bytes = size - PRELUDE.size - header_bytes - DIGEST_BYTES
    if header_bytes > MAX_HEADER_BYTES or body_bytes < 0:
        raise _refused(path, f"is cut short at {size} bytes or claims a header of {header_bytes}")
    text = stream.read(header_bytes)
    header, specs = _header(path, text)
    needed = sum(math.prod(shape) * np.dtype(dtype).itemsize for _, dtype, shape in specs)
    if needed != body_bytes:
        raise _refused(path, f"holds {body_bytes} bytes of arrays where its header says {needed}")
    body = stream.read(body_bytes)
    digest = hashlib.sha256(front + text)
    digest.update(body)
    if stream.read(DIGEST_BYTES + 1) != digest.digest():
        raise _refused(path, "does not match its checksum")
    return header, _arrays(path, specs, body)


Spec = tuple[str, str, tuple[int, ...]]


def _header(path: StrPath, text: bytes) -> tuple[dict[str, Any], list[Spec]]:
    try:
        values = strict_json.loads(text)
        header, described = values["header"], values["arrays"]
        if not isinstance(header, dict) or len(described) > MAX_ARRAYS:
            raise ValueError("header and arrays have the wrong form")
        specs = [_spec(*one) for one in described]
        if len({name for name, _, _ in specs}) < len(specs):
            raise ValueError("two arrays of one name")
        return header, specs
    except (ValueError, TypeError, KeyError) as error:
        raise _refused(path, f"has an unreadable header ({type(error).__name__}: {error})") from error


def _spec(name: Any, dtype: Any, shape: Any) -> Spec:
    whole = isinstance(shape, list) and all(type(n) is int and 0 <= n <= MAX_BYTES for n in shape)
    if not isinstance(name, str) or dtype not in DTYPES or not whole or len(shape) > 8:
        raise ValueError("an array has an impossible name, dtype or shape")
    return name, dtype, tuple(shape)


def _arrays(path: StrPath, specs: list[Spec], body: bytes) -> Arrays:
    arrays, start = {}, 0
    for name, dtype, shape in specs:
        count = math.prod(shape)
        try:
            arrays[name] = np.frombuffer(body, dtype, count, start).reshape(shape).copy()
        except ValueError as error:
            raise _refused(path, f"has an impossible array {name!r} ({error})") from error
        start += arrays[name].nbytes
    return arrays


def _refused(path: StrPath, why: str) -> CheckpointError:
    return CheckpointError(f"checkpoint={str(path)!r} {why}")
