"""LOSSLESS: message <-> payload. The bytes of a real upload, at the entropy of the levels."""

from __future__ import annotations

from fedpaq.codec.frame import Header, read_header
from fedpaq.codec.wire import accumulate, decode, encode, encode_batch

__all__ = ["Header", "accumulate", "decode", "encode", "encode_batch", "read_header"]
