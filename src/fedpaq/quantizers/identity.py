"""Identity: no quantization. FedPAQ with it is FedAvg; with one local step, parallel SGD."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpaq.errors import ConfigError
from fedpaq.quantizers.low_precision import as_float32, refuse_non_finite
from fedpaq.quantizers.message import RawMessage
from fedpaq.randomness import Key


@dataclass(frozen=True)
class Identity:
    """Send the update as it is: 32 bits a coordinate, no variance.

    >>> Identity().quantize(np.array([1.5, 0.0], np.float32), key=Key(seed=0)).dequantize()
    array([1.5, 0. ], dtype=float32)
    """

    @property
    def name(self) -> str:
        """Short label for tables and reports."""
        return "none"

    def variance_bound(self, dimension: int) -> float:
        """Return q = 0."""
        return 0.0

    def quantize(self, update: Any, *, key: Key) -> RawMessage:
        """Wrap one finite update."""
        vector = as_float32(update)
        if vector.ndim != 1:
            raise ConfigError(f"update.shape={vector.shape} is not a vector; flatten it to (p,)")
        return self.quantize_batch(vector[None, :], [key])[0]

    def quantize_batch(self, updates: Any, keys: Sequence[Key]) -> list[RawMessage]:
        """Wrap r finite updates (r, p)."""
        rows = as_float32(updates)
        if rows.ndim != 2 or len(rows) != len(keys):
            raise ConfigError(f"updates.shape={rows.shape} does not match the {len(keys)} keys; pass (r, p)")
        largest = np.maximum(rows.max(axis=1, initial=0.0), -rows.min(axis=1, initial=0.0))[:, None]
        refuse_non_finite(largest, rows, keys)
        return [RawMessage(row) for row in rows]
