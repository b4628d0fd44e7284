"""Device batches: updates quantized on the GPU where they are, one class for each quantizer that can do so.

The sum equals the CPU's to the bit. Messages are fetched only where somebody else must decode them.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
from torch import Tensor

from fedpaq import codec
from fedpaq.arrays import Bools, Float64
from fedpaq.clients.work import LocalWork
from fedpaq.hardware.devices import to_tensor
from fedpaq.kernels import cuda
from fedpaq.quantizers import Identity, LowPrecision, Message, QuantizedBatch, Quantizer
from fedpaq.quantizers.rotated import Rotated
from fedpaq.quantizers.update import as_float32
from fedpaq.server.payload_sizes import estimated_bytes
from fedpaq.server.rotated_batch import RotatedOnDevice


class DeviceBatch(Protocol):
    """The messages of some work on a device."""

    size_source: ClassVar[str]  # how payload bytes are known: ``encoded`` or ``estimated``

    def add_to(self, total: Tensor, first_job: Tensor) -> None:
        """Add to total (runs, p), in order; run j has the jobs first_job[j] : first_job[j + 1]."""

    def payload_bytes(self) -> Float64:
        """Return the length of each payload (jobs,)."""

    def fetch(self) -> tuple[Sequence[Message], Bools]:
        """Return the messages, and which of them (jobs,) are of finite updates; the others are zeros."""


class LevelsOnDevice:
    """Levels of ``LowPrecision``; payload sizes are estimated from them."""

    size_source: ClassVar[str] = "estimated"

    def __init__(self, quantizer: LowPrecision, updates: Tensor, work: LocalWork) -> None:
        self._quantizer, self._dimension = quantizer, updates.shape[1]
        seeds, clients = (to_tensor(values, updates.device) for values in (work.seeds, work.clients))
        settings = quantizer.levels, quantizer.bucket_size
        self._kernels = cuda.load("low_precision")
        self._batch = self._kernels.quantize(updates, seeds, work.round, clients, *settings)

    def add_to(self, total: Tensor, first_job: Tensor) -> None:
        self._kernels.add_levels(self._batch, first_job, total)

    def payload_bytes(self) -> Float64:
        return estimated_bytes(self._batch, self._dimension, self._quantizer, self._kernels.BLOCK)

    def fetch(self) -> tuple[QuantizedBatch, Bools]:
        norms = self._batch.norms.cpu().numpy()
        usable = np.isfinite(norms).all(axis=1)
        signed = self._batch.signed_levels[:, : self._dimension].cpu().numpy()
        signed[~usable], norms[~usable] = 0, 0.0
        return QuantizedBatch(signed, norms, self._quantizer.levels, self._quantizer.bucket_size), usable


class ValuesOnDevice:
    """Updates as they are."""

    size_source: ClassVar[str] = "encoded"  # the length of a float32 payload needs no estimate

    def __init__(self, quantizer: Identity, updates: Tensor, work: LocalWork) -> None:
        self._quantizer, self._updates, self._work = quantizer, updates, work

    def add_to(self, total: Tensor, first_job: Tensor) -> None:
        cuda.load("low_precision").add_updates(self._updates, first_job, total)

    def payload_bytes(self) -> Float64:
        return np.full(len(self._updates), float(codec.raw_bytes(self._updates.shape[1])))

    def fetch(self) -> tuple[Sequence[Message], Bools]:
        rows = as_float32(self._updates)
        usable: Bools = np.asarray(np.isfinite(rows).all(axis=1))
        rows[~usable] = 0.0
        return self._quantizer.quantize_batch(rows, self._work.keys()), usable


DEVICE_BATCHES: dict[type[Any], Any] = {
    LowPrecision: LevelsOnDevice,
    Identity: ValuesOnDevice,
    Rotated: RotatedOnDevice,
}


def has_device_batch(quantizer: Quantizer) -> bool:
    """Whether a GPU makes its messages. A promise of bytes is kept by the encoder, which is on the host."""
    promised = isinstance(quantizer, Rotated) and quantizer.payload_bytes is not None
    return type(quantizer) in DEVICE_BATCHES and not promised


def device_batch(quantizer: Quantizer, updates: Any, work: LocalWork) -> DeviceBatch | None:
    """Return the messages of updates on a GPU, or None where they are not, or their quantizer has no kernel."""
    if not (getattr(updates, "is_cuda", False) and has_device_batch(quantizer)):
        return None
    batch: DeviceBatch = DEVICE_BATCHES[type(quantizer)](quantizer, updates, work)
    return batch
