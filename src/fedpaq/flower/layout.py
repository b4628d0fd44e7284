"""Layout: which arrays of a model form the flat vector x, and which travel as they are.

* float16, float32 and float64 arrays, in the record's order, form x. The server keeps x in float32
  (so float16 models gain a float32 master copy, float64 ones are rounded); clients receive every
  array in its own dtype.
* Integer and boolean arrays, and arrays whose name matches an ``exact`` pattern, are not quantized:
  they travel raw beside the payload. The server combines the floats among them as it does the model and takes
  the integers from the first counted reply. BatchNorm's statistics are exact by default: they are not
  parameters, and the noise of a quantizer would make variances negative.
* Any other dtype is refused by name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from functools import cached_property

import numpy as np
from flwr.app import Array, ArrayRecord

from fedpaq.arrays import AnyArray, Float32
from fedpaq.errors import ConfigError

Arrays = dict[str, AnyArray]

EXACT = ("*running_mean", "*running_var", "*num_batches_tracked")  # BatchNorm's statistics
FLOATS = ("float16", "float32", "float64")
WHOLES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool")


@dataclass(frozen=True)
class Slot:
    """One array of the model."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    quantized: bool

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the array as it is."""
        return self.size * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Layout:
    """The arrays of a model in order; the same on server and client."""

    slots: tuple[Slot, ...]

    @classmethod
    def of(cls, record: ArrayRecord, exact: Sequence[str] = EXACT) -> Layout:
        """Return the layout of a model; raise ConfigError where it has nothing to quantize."""
        for pattern in exact:
            if pattern not in EXACT and not any(fnmatchcase(name, pattern) for name in record):
                raise ConfigError(f"exact={pattern!r} matches no array of the model; it has {', '.join(record)}")
        layout = cls(tuple(_slot(name, array, exact) for name, array in record.items()))
        if not layout.dimension:
            raise ConfigError("the model has no float arrays to quantize; FedPAQ needs at least one")
        return layout

    @cached_property
    def dimension(self) -> int:
        """p: the length of x."""
        return sum(slot.size for slot in self.slots if slot.quantized)

    @cached_property
    def exact_slots(self) -> tuple[Slot, ...]:
        """The arrays that travel as they are."""
        return tuple(slot for slot in self.slots if not slot.quantized)

    def to_json(self) -> str:
        """Return the layout as text, for the wire and the checkpoint."""
        return json.dumps([asdict(slot) for slot in self.slots], separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Layout:
        """Return the layout that ``to_json`` wrote."""
        slots = [Slot(**{**slot, "shape": tuple(slot["shape"])}) for slot in json.loads(text)]
        return cls(tuple(slots))

    def read(self, record: ArrayRecord) -> Arrays:
        """Return the arrays of a model by name, or raise ConfigError where they do not fit the layout."""
        names = [slot.name for slot in self.slots]
        if set(record) != set(names):
            lost, new = sorted(set(names) - set(record)), sorted(set(record) - set(names))
            raise ConfigError(
                f"the arrays returned differ from those received: missing {lost or 'none'}, "
                f"new {new or 'none'}; return every array of the model under its own name"
            )
        return {slot.name: _read_array(slot, record[slot.name]) for slot in self.slots}

    def vector(self, arrays: Mapping[str, AnyArray]) -> Float32:
        """Return x, (p,) float32."""
        parts = [arrays[slot.name].reshape(-1) for slot in self.slots if slot.quantized]
        return np.concatenate(parts, dtype=np.float32, casting="same_kind")

    def update(self, trained: Mapping[str, AnyArray], received: Mapping[str, AnyArray]) -> Float32:
        """Return x_local - x_received, (p,): in float32, or in float64 where either side is."""
        result, start = np.empty(self.dimension, np.float32), 0
        for slot in self.slots:
            if slot.quantized:
                after, before = trained[slot.name].reshape(-1), received[slot.name].reshape(-1)
                wide = np.result_type(after, before, np.float32)
                result[start : start + slot.size] = np.subtract(after, before, dtype=wide)
                start += slot.size
        return result

    def exact(self, arrays: Mapping[str, AnyArray]) -> bytes:
        """Return the exact arrays, one after another, little-endian."""
        return b"".join(_raw(slot, arrays[slot.name]) for slot in self.exact_slots)

    @cached_property
    def exact_bytes(self) -> int:
        """How many bytes ``exact`` returns."""
        return sum(slot.nbytes for slot in self.exact_slots)

    def exact_arrays(self, exact: bytes) -> Arrays:
        """Return the arrays that ``exact`` wrote."""
        return _cut(self.exact_slots, exact)

    def arrays(self, params: Float32, exact: bytes) -> Arrays:
        """Return the whole model, each array in its own dtype."""
        found, start = self.exact_arrays(exact), 0
        for slot in self.slots:
            if slot.quantized:
                part = params[start : start + slot.size].reshape(slot.shape)
                found[slot.name], start = part.astype(slot.dtype, copy=False), start + slot.size
        return {slot.name: found[slot.name] for slot in self.slots}

    def pack(self, arrays: Mapping[str, AnyArray]) -> bytes:
        """Return all arrays as one run of bytes: one object for Flower to carry instead of many."""
        return b"".join(_raw(slot, arrays[slot.name]) for slot in self.slots)

    def unpack(self, packed: bytes) -> Arrays:
        """Return the arrays that ``pack`` wrote."""
        return _cut(self.slots, packed)


def as_record(arrays: Mapping[str, AnyArray]) -> ArrayRecord:
    """Return arrays as a Flower record."""
    return ArrayRecord({name: Array(np.asarray(values, order="C")) for name, values in arrays.items()})


def _slot(name: str, array: Array, exact: Sequence[str]) -> Slot:
    if array.stype != "numpy.ndarray" or array.dtype not in (*FLOATS, *WHOLES):
        raise ConfigError(
            f"array {name!r} has dtype={array.dtype} ({array.stype}), which FedPAQ cannot carry; "
            f"choose one of {', '.join((*FLOATS, *WHOLES))}"
        )
    quantized = array.dtype in FLOATS and not any(fnmatchcase(name, pattern) for pattern in exact)
    return Slot(name, array.dtype, tuple(array.shape), quantized)


def _read_array(slot: Slot, array: Array) -> AnyArray:
    values = array.numpy()
    if values.shape != slot.shape:
        raise ConfigError(
            f"array {slot.name!r} came back with shape {values.shape}, but was sent with {slot.shape}; "
            "a round cannot change the shape of the model"
        )
    allowed = FLOATS if slot.quantized else (slot.dtype,)
    if str(values.dtype) not in allowed:
        raise ConfigError(f"array {slot.name!r} came back with dtype={values.dtype}; allowed: {', '.join(allowed)}")
    return values


def _raw(slot: Slot, values: AnyArray) -> bytes:
    return values.astype(np.dtype(slot.dtype).newbyteorder("<"), copy=False).tobytes()


def _cut(slots: Sequence[Slot], data: bytes) -> Arrays:
    expected = sum(slot.nbytes for slot in slots)
    if len(data) != expected:
        raise ConfigError(f"the packed arrays have {len(data)} bytes where the layout says {expected}")
    arrays, start = {}, 0
    for slot in slots:
        flat = np.frombuffer(data, np.dtype(slot.dtype).newbyteorder("<"), slot.size, start)
        arrays[slot.name] = flat.astype(slot.dtype, copy=False).reshape(slot.shape)
        start += slot.nbytes
    return arrays
