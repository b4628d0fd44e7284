"""Checkpoint: one file that is whole or absent, whatever happens while it is written.

    magic "FEDPAQCK" | version u32 | header length u32                16 bytes, little-endian
    header: JSON {"header": what the caller gave, "arrays": [[name, dtype, shape], ...]}
    the arrays' bytes, one after another, little-endian
    SHA-256 of everything before it                                   32 bytes

A file is written beside its target, flushed to the disk and renamed over it. The file it replaces
stays as ``<name>.previous``, so a checkpoint of that name exists at every moment. Nothing is pickled,
and every size in a file is checked against the length of the file before it is used.
"""

import hashlib
import io
import json
import math
import os
import struct
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedpaq.arrays import AnyArray
from fedpaq.errors import CheckpointError
from fedpaq.storage import strict_json
from fedpaq.storage.atomic_file import StrPath, replace

MAGIC = b"FEDPAQCK"
VERSION = 1
PRELUDE = struct.Struct("<8sII")
DIGEST_BYTES = 32
MAX_HEADER_BYTES = 2**24
MAX_ARRAYS = 1024
MAX_BYTES = 2**34
DTYPES = ("<f4", "<f8", "<i4", "<i8", "<u4", "<u8", "|i1", "|u1", "|b1")

Arrays = dict[str, AnyArray]


def pack(header: Mapping[str, Any], arrays: Mapping[str, AnyArray]) -> bytes:
    """Return what ``save`` would write, for a channel that is not a disk.

    >>> unpack(pack({"round": 3}, {"params": np.zeros(2)}))
    ({'round': 3}, {'params': array([0., 0.])})
    """
    return b"".join(_chunks(header, arrays))


def unpack(data: bytes) -> tuple[dict[str, Any], Arrays]:
    """Return (header, arrays) of ``pack``'s bytes, or raise CheckpointError."""
    return _parse("packed checkpoint", io.BytesIO(data), len(data), MAX_BYTES)


def save(path: StrPath, header: Mapping[str, Any], arrays: Mapping[str, AnyArray]) -> None:
    """Write a checkpoint in one step and keep the one before as ``<name>.previous``.

    ``header`` holds plain JSON values. A failure (disk full, read-only folder) raises
    CheckpointError and leaves the old checkpoint as it was.
    """
    target = Path(os.path.realpath(path))
    chunks = _chunks(header, arrays)
    if target.exists():
        _require_own(target)
    try:
        replace(target, chunks, kept_as=previous(target))
    except OSError as error:
        raise CheckpointError(
            f"{_named(path)} cannot be written ({error.strerror or error}); what was saved before "
            "is untouched: make room or choose another folder, then resume"
        ) from error


def load(path: StrPath, *, max_bytes: int = MAX_BYTES) -> tuple[dict[str, Any], Arrays]:
    """Return (header, arrays) of the newest good checkpoint.

    If the newest is damaged, foreign or from a future version, the previous one is returned with
    a warning and the refused file is kept as ``<name>.refused``, so that no save can replace the
    last good file by a bad one. If no file is good, CheckpointError says what is wrong.
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
        raise CheckpointError(f"{_named(path)} does not exist; start one without resuming")
    if not Path(path).is_file():
        raise CheckpointError(f"{_named(path)} is not a regular file")
    try:
        with open(path, "rb") as stream:
            return _parse(_named(path), stream, os.fstat(stream.fileno()).st_size, max_bytes)
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(f"{_named(path)} cannot be read ({error.strerror or error})") from error


def exists(path: StrPath) -> bool:
    """Tell whether there is a checkpoint to resume from, the newest or the one before it."""
    target = Path(os.path.realpath(path))
    return target.exists() or previous(target).exists()


def previous(path: StrPath) -> Path:
    """Return where the checkpoint before the newest is kept."""
    return Path(path).with_name(f"{Path(path).name}.previous")


def _require_own(target: Path) -> None:
    """Raise CheckpointError if a save would replace a file that is not a checkpoint."""
    if not target.is_file():
        raise CheckpointError(f"{_named(target)} is not a regular file")
    with target.open("rb") as stream:
        if stream.read(len(MAGIC)) != MAGIC:
            raise CheckpointError(
                f"{_named(target)} is not a fedpaq checkpoint, so it is not replaced; choose another file"
            )


def _chunks(header: Mapping[str, Any], arrays: Mapping[str, AnyArray]) -> list[Any]:
    """Return the parts of the file, arrays as views of their memory; the last part is the digest."""
    stored = {name: _little_endian(name, values) for name, values in arrays.items()}
    chunks: list[Any] = [
        _front(header, stored),
        *(values.reshape(-1).view(np.uint8).data for values in stored.values()),
    ]
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return [*chunks, digest.digest()]


def _little_endian(name: str, values: AnyArray) -> AnyArray:
    stored = np.asarray(values, order="C")
    stored = stored.astype(stored.dtype.newbyteorder("<"), copy=False)
    if stored.dtype.str not in DTYPES:
        raise CheckpointError(f"{name}.dtype={values.dtype} cannot be saved; choose one of {', '.join(DTYPES)}")
    return stored


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
    return PRELUDE.pack(MAGIC, VERSION, len(text)) + text


def _parse(name: str, stream: IO[bytes], size: int, max_bytes: int) -> tuple[dict[str, Any], Arrays]:
    front = stream.read(PRELUDE.size)
    if front[: len(MAGIC)] != MAGIC[: len(front)] or not front:
        raise CheckpointError(f"{name} is not a fedpaq checkpoint")
    if size < PRELUDE.size + DIGEST_BYTES:
        raise CheckpointError(f"{name} is cut short at {size} bytes")
    _, version, header_bytes = PRELUDE.unpack(front)
    if version != VERSION:
        raise CheckpointError(f"{name} has version={version}; this fedpaq reads version {VERSION}: upgrade")
    if size > max_bytes:
        raise CheckpointError(f"{name} has {size} bytes, more than the {max_bytes} expected")
    body_bytes = size - PRELUDE.size - header_bytes - DIGEST_BYTES
    if header_bytes > MAX_HEADER_BYTES or body_bytes < 0:
        raise CheckpointError(f"{name} is cut short at {size} bytes or claims a header of {header_bytes}")
    text = stream.read(header_bytes)
    try:
        header, specs = _header(text)
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{name} has an unreadable header ({type(error).__name__}: {error})") from error
    needed = sum(math.prod(shape) * np.dtype(dtype).itemsize for _, dtype, shape in specs)
    if needed != body_bytes:
        raise CheckpointError(f"{name} holds {body_bytes} bytes of arrays where its header says {needed}")
    body = stream.read(body_bytes)
    digest = hashlib.sha256(front + text)
    digest.update(body)
    if stream.read(DIGEST_BYTES + 1) != digest.digest():
        raise CheckpointError(f"{name} does not match its checksum")
    arrays, start = {}, 0
    for key, dtype, shape in specs:
        try:
            arrays[key] = np.frombuffer(body, dtype, math.prod(shape), start).reshape(shape).copy()
        except ValueError as error:
            raise CheckpointError(f"{name} has an impossible array {key!r} ({error})") from error
        start += arrays[key].nbytes
    return header, arrays


def _header(text: bytes) -> tuple[dict[str, Any], list[tuple[str, str, tuple[int, ...]]]]:
    """Return the caller's header and each array's name, dtype and shape."""
    values = strict_json.loads(text)
    header, described = values["header"], values["arrays"]
    if not isinstance(header, dict) or len(described) > MAX_ARRAYS:
        raise ValueError("header and arrays have the wrong form")
    specs = []
    for name, dtype, shape in described:
        whole = isinstance(shape, list) and all(type(n) is int and 0 <= n <= MAX_BYTES for n in shape)
        if not isinstance(name, str) or dtype not in DTYPES or not whole or len(shape) > 8:
            raise ValueError("an array has an impossible name, dtype or shape")
        specs.append((name, dtype, tuple(shape)))
    if len({name for name, _, _ in specs}) < len(specs):
        raise ValueError("two arrays of one name")
    return header, specs


def _named(path: StrPath) -> str:
    return f"checkpoint={str(path)!r}"
