"""Update: what a quantizer is handed. Any layout and number type means its float32, or is refused by name."""

from typing import Any

import numpy as np

from fedpaq.arrays import Float32, Float64
from fedpaq.errors import ConfigError, NonFiniteUpdateError
from fedpaq.randomness import Keys


def require_a_key_each(rows: Float32, keys: Keys) -> None:
    """Raise ConfigError unless there are r updates (r, p) and r keys."""
    if rows.ndim != 2 or len(rows) != len(keys):
        raise ConfigError(f"updates.shape={rows.shape} does not match the {len(keys)} keys; pass (r, p)")


def as_vector(update: Any) -> Float32:
    """Return one update as a contiguous float32 vector, or raise ConfigError."""
    vector = as_float32(update)
    if vector.ndim != 1:
        raise ConfigError(f"update.shape={vector.shape} is not a vector; flatten it to (p,)")
    return vector


def as_float32(values: Any) -> Float32:
    """Return a contiguous float32 array of an array or a tensor; itself, if it is one."""
    if type(values) is np.ndarray and values.dtype == np.float32 and values.flags.c_contiguous:
        return np.require(values, requirements=["A"])
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = (values.float() if values.is_floating_point() else values).numpy()  # NumPy has no bfloat16
    array = np.asarray(values)
    if array.dtype.kind not in "fiu":
        raise ConfigError(f"update.dtype={array.dtype} is not numeric; pass float32")
    with np.errstate(over="ignore"):  # beyond float32 is infinite, which is refused by name
        return np.require(array, np.float32, ["C", "A"])


def refuse_non_finite(norms: Float32 | Float64, rows: Float32, keys: Keys) -> None:
    """Raise NonFiniteUpdateError naming the client and the first bad coordinate."""
    finite = np.isfinite(norms)
    if finite.all():
        return
    job = int(finite.all(axis=1).argmin())
    where = np.flatnonzero(~np.isfinite(rows[job]))
    client, round = keys[job].client, keys[job].round
    if where.size:
        raise NonFiniteUpdateError(
            f"update[{int(where[0])}]={rows[job, where[0]]} of client={client} in round={round} "
            "is not finite; lower step_size or clip the update"
        )
    raise NonFiniteUpdateError(
        f"the norm of the update of client={client} in round={round} exceeds float32; lower step_size"
    )
