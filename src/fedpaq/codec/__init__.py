"""LOSSLESS: message <-> payload. The bytes of a real upload, at the entropy of the levels."""

from __future__ import annotations

from fedpaq.codec.accounting import message_bits, order0_entropy
from fedpaq.codec.estimate import estimate_payload_bytes
from fedpaq.codec.frame import Header, read_header
from fedpaq.codec.wire import accumulate, decode, encode, encode_batch

__all__ = [
    "Header",
    "accumulate",
    "decode",
    "encode",
    "encode_batch",
    "estimate_payload_bytes",
    "message_bits",
    "order0_entropy",
    "read_header",
]
