"""Updates and messages for the tests of the rotated quantizer."""

from __future__ import annotations

import numpy as np

from fedpaq import Key
from fedpaq.quantizers.rotated.allocation import allocate
from fedpaq.quantizers.rotated.message import RotatedMessage
from fedpaq.quantizers.rotated.quantizer import payload_size, with_content
from fedpaq.quantizers.rotated.rotation import Blocks
from fedpaq.quantizers.rotated.rounding import sum_cells
from fedpaq.quantizers.rotated.sketch import Sketch

KEY = Key(seed=3, round=1, client=4)


def kinds(p: int) -> dict[str, np.ndarray]:
    """Updates that rotations and roundings may find hard."""
    rng = np.random.default_rng(p)
    sparse = np.where(rng.random(p) < 0.02, rng.standard_normal(p), 0.0)
    sparse[p // 2] = 1.0
    found = {
        "gaussian": rng.standard_normal(p),
        "heavy": rng.standard_t(2, p) ** 3,
        "one-hot": np.eye(1, p, p // 3)[0],
        "two-valued": np.where(rng.random(p) < 0.5, -1.0, 1.0),
        "constant": np.ones(p),
        "sparse": sparse,
        "uneven": rng.standard_normal(p) * np.exp(-4 * np.arange(p) / p),
    }
    return {name: update.astype(np.float32) for name, update in found.items()}


def uneven_update(p: int, seed: int = 0) -> np.ndarray:
    """A Gaussian vector whose scale falls along it."""
    noise = np.random.default_rng(seed).standard_normal(p)
    return (noise * np.exp(-3 * np.arange(p) / p)).astype(np.float32)


def rotated_message(update: np.ndarray, bits: float, key: Key = KEY) -> RotatedMessage:
    """Round an update to about so many bits a coordinate, rotated even where LowPrecision is better."""
    cells = sum_cells(update)[0]
    plan = allocate(cells, update.size, bits * update.size)
    return Sketch.of(update, plan, cells, key).message(bits * update.size)


def arithmetic_rotated(dimension: int, count: int, levels: int, period: int, mantissa_bits: int = 3):
    """A message from integer arithmetic alone: the same on every platform and NumPy."""
    blocks = Blocks(dimension, count)
    index = np.arange(blocks.padded, dtype=np.int64)
    noise = (index * 2654435761 + 12345) % 4294967296 >> 16  # 16 bits
    magnitude = np.where(noise % period == 0, 1 + noise // period % levels, 0)
    magnitude[noise.argmax()] = levels  # the largest level is the one announced
    signed = np.where(noise % 3 == 0, -magnitude, magnitude).astype(np.int16)
    used = signed.reshape(count, -1).any(axis=1)
    steps = 8 + (7 * np.arange(count)) % 8  # eighths: 1 to 1.875, in three bits
    scales = np.where(used, steps / 8.0 * 2.0**-10, 0.0)
    return RotatedMessage(blocks, signed, scales, mantissa_bits, levels, int((signed != 0).sum()), KEY)


def bytes_of(message) -> int:
    """Return the bytes of a message's payload."""
    return payload_size(with_content(message) if isinstance(message, RotatedMessage) else message)
