"""Identity: no quantization. FedPAQ with it is FedAvg; with one local step, parallel SGD."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedpaq.quantizers.message import RawMessage
from fedpaq.quantizers.update import as_float32, as_vector, refuse_non_finite, require_a_key_each
from fedpaq.randomness import Key, Keys


@dataclass(frozen=True)
class Identity:
    """Send the update as it is: 32 bits a coordinate, no variance.

    >>> Identity().quantize(np.array([1.5, 0.0], np.float32), key=Key(seed=0)).dequantize()
    array([1.5, 0. ], dtype=float32)
    """

    name: ClassVar[str] = "none"

    def variance_bound(self, dimension: int) -> float:
        """Return q = 0."""
        return 0.0

    def accepts(self, header: Any) -> bool:
        """Return whether a payload with this header can come from here."""
        return bool(header.code_name == "raw")

    def quantize(self, update: Any, *, key: Key) -> RawMessage:
        """Wrap one finite update."""
        return self.quantize_batch(as_vector(update)[None, :], [key])[0]

    def approximate(self, update: Any, *, key: Key) -> RawMessage:
        """Wrap one finite update: nothing is nearer."""
        return self.quantize(update, key=key)

    def quantize_batch(self, updates: Any, keys: Keys | Sequence[Key]) -> list[RawMessage]:
        """Wrap r finite updates (r, p)."""
        rows, keys = as_float32(updates), Keys.of(keys)
        require_a_key_each(rows, keys)
        largest = np.maximum(rows.max(axis=1, initial=0.0), -rows.min(axis=1, initial=0.0))[:, None]
        refuse_non_finite(largest, rows, keys)
        return [RawMessage(row) for row in rows]
