"""LOSSY: update -> message. A quantizer is any object with the four members of ``Quantizer``."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from fedpaq.quantizers.check import check_quantizer
from fedpaq.quantizers.identity import Identity
from fedpaq.quantizers.low_precision import LowPrecision
from fedpaq.quantizers.message import Message, QuantizedBatch, QuantizedMessage, RawMessage
from fedpaq.quantizers.registry import QUANTIZERS, as_quantizer, names, parse, text_of
from fedpaq.randomness import Key, Keys


@runtime_checkable
class Quantizer(Protocol):
    """An unbiased random map Q with E||Q(x) - x||^2 <= variance_bound(p) * ||x||^2."""

    @property
    def name(self) -> str:
        """Short label for tables and reports."""

    def variance_bound(self, dimension: int) -> float:
        """Return q of Assumption 1."""

    def quantize(self, update: Any, *, key: Key) -> Message:
        """Quantize one update (p,)."""

    def quantize_batch(self, updates: Any, keys: Keys | Sequence[Key]) -> Sequence[Message]:
        """Quantize r updates (r, p), equal to one by one."""


__all__ = [
    "Identity",
    "Key",
    "Keys",
    "LowPrecision",
    "Message",
    "QUANTIZERS",
    "QuantizedBatch",
    "QuantizedMessage",
    "Quantizer",
    "RawMessage",
    "as_quantizer",
    "check_quantizer",
    "names",
    "parse",
    "text_of",
]
