"""Messages for the codec's tests: deterministic, of every density and shape."""

from __future__ import annotations

import zlib

import numpy as np

from fedpaq.codec.frame import pack_header
from fedpaq.codec.level_code import pack_fields
from fedpaq.quantizers import Key, LowPrecision, QuantizedMessage


def gaussian_message(dimension: int, levels: int, bucket_size: int | None = None, seed: int = 0):
    """Quantize a Gaussian vector."""
    update = np.random.default_rng(seed).standard_normal(dimension).astype(np.float32)
    return LowPrecision(levels, bucket_size).quantize(update, key=Key(seed=seed))


def uneven_message(dimension: int, levels: int, bucket_size: int | None = None, seed: int = 0):
    """Quantize a vector whose scale varies along it by powers of ten, a third of it zero."""
    rng = np.random.default_rng(seed)
    scale = np.exp(4 * np.sin(np.arange(dimension) / 97)) * (np.arange(dimension) % 300 >= 100)
    update = (rng.standard_normal(dimension) * scale).astype(np.float32)
    return LowPrecision(levels, bucket_size).quantize(update, key=Key(seed=seed))


def arithmetic_message(dimension: int, levels: int, period: int, bucket_size: int | None = None):
    """A message from integer arithmetic alone: the same on every platform and NumPy."""
    index = np.arange(dimension, dtype=np.int64)
    noise = (index * 2654435761 + 12345) % 4294967296 >> 16  # 16 bits
    magnitude = np.where(noise % period == 0, 1 + noise // period % levels, 0)
    signed = np.where(noise % 3 == 0, -magnitude, magnitude)
    buckets = 1 if bucket_size is None else -(-dimension // bucket_size)
    norms = (np.arange(buckets) + 1).astype(np.float32) / 8
    dtype = np.int8 if levels <= 127 else np.int16
    return QuantizedMessage(signed.astype(dtype), norms, levels, bucket_size)


def reseal(frame: bytes) -> bytes:
    """Return the frame with a correct CRC: what a hostile client would send."""
    return frame[:-4] + zlib.crc32(frame[:-4]).to_bytes(4, "little")


def level_header(code, dimension, levels, bucket_size):
    """Return the bytes of a frame before its norms; a raw frame (levels=0) has none."""
    return pack_header(code, dimension) + (pack_fields(levels, bucket_size) if levels else b"")
