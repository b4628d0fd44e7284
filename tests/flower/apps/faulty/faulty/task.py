"""The local work (no torch: processes start fast) and the ways to misbehave."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

DIMENSION = 300


def local_params(params: np.ndarray, round: int, client: int) -> np.ndarray:
    """What a client makes of the model: a step that depends on round and client."""
    rng = np.random.default_rng([round, client])
    return params + rng.normal(size=params.shape).astype(np.float32)


def faults_of(text: str) -> dict[tuple[int, int], str]:
    """Parse "round/client/kind;..."."""
    entries = [entry.split("/") for entry in text.split(";") if entry]
    return {(int(round), int(client)): kind for round, client, kind in entries}


def damaged(payload: bytes, kind: str) -> bytes:
    """Return the payload with one kind of damage."""
    from fedpaq import Key, LowPrecision, codec

    if kind == "truncated":
        return payload[:-5]
    if kind == "random":
        return np.random.default_rng(0).bytes(len(payload))
    if kind == "wrong-dimension":
        other = np.ones(DIMENSION + 1, np.float32)
        return codec.encode(LowPrecision(levels=1).quantize(other, key=Key(seed=0)))
    if kind == "nan-norm":
        norm = codec.read_header(payload).norms.tobytes()
        return payload.replace(norm, np.float32([np.nan]).tobytes(), 1)
    if kind == "oversized":
        return payload + bytes(2_000_000)
    raise ValueError(f"unknown fault {kind!r}")


def dawdle(folder: str, round: int, client: int, seconds: float) -> None:
    """Say that the client is at work, and take long."""
    (Path(folder) / f"at-work-{round}-{client}").touch()
    time.sleep(seconds)
