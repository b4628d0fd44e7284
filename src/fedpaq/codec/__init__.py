"""LOSSLESS: message <-> payload. The bytes of a real upload, at the entropy of the levels."""

from fedpaq.codec.accounting import message_bits, order0_entropy
from fedpaq.codec.frame import Code, Header
from fedpaq.codec.raw_code import raw_bytes
from fedpaq.codec.wire import CODES, accumulate, code_by_id, decode, encode, encode_batch, measure_batch, read_header

__all__ = [
    "CODES",
    "Code",
    "Header",
    "accumulate",
    "code_by_id",
    "decode",
    "encode",
    "encode_batch",
    "measure_batch",
    "message_bits",
    "order0_entropy",
    "raw_bytes",
    "read_header",
]
