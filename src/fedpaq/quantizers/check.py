"""check_quantizer: Assumption 1 of the paper as a conformance test for anybody's quantizer.

Statistical checks use ``trials`` keys and tolerances of five standard errors, so a correct
quantizer fails about once in a million calls, and never for the same ``seed`` twice differently.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedpaq.arrays import Float32
from fedpaq.config import require_instance_with, require_int
from fedpaq.errors import ConfigError
from fedpaq.quantizers.message import QuantizedBatch
from fedpaq.randomness import Key, Keys, Purpose, normals

SIGMAS = 5.0
DIMENSIONS = (1, 5, 300)
SCALES = {"usual": 1.0, "huge": 1e30, "tiny": 1e-30}


def check_quantizer(quantizer: Any, *, trials: int = 2000, seed: int = 0) -> None:
    """Raise ConfigError at the first property of an unbiased quantizer that does not hold.

    Checked: the same key gives the same message and other keys give others; a batch equals one by
    one; zeros stay zeros; the mean over keys is the update; the mean squared error is within
    ``variance_bound``; all that for huge and tiny updates too.

    >>> from fedpaq.quantizers import LowPrecision
    >>> check_quantizer(LowPrecision(levels=4))
    """
    members = ("quantize", "quantize_batch", "variance_bound")
    require_instance_with("quantizer", quantizer, members, "LowPrecision(1), Rotated(bits=0.1)")
    require_int("trials", trials, 100)
    for dimension in DIMENSIONS:
        update = normals(Purpose.CHECK, Key(seed=seed, client=dimension), dimension).astype(np.float32)
        _check_zero(quantizer, dimension)
        _check_keys_and_batches(quantizer, update, seed)
        for name, scale in SCALES.items():
            _check_moments(quantizer, update * np.float32(scale), name, trials, seed)


def quantize_all(quantizer: Any, updates: Float32, keys: Keys | Sequence[Key]) -> Any:
    """Return the messages of ``quantize_batch``; raise ConfigError unless they are one for each update (r, p)."""
    messages = quantizer.quantize_batch(updates, keys)
    if not isinstance(messages, Sequence):
        raise _fail(quantizer, f"returns {type(messages).__name__} from quantize_batch; return a list of messages")
    if len(messages) != len(keys):
        given = f"{len(messages)} messages for {len(keys)} updates"
        raise _fail(quantizer, f"returns {given} from quantize_batch; return one for each")
    if not isinstance(messages, QuantizedBatch):  # which would make its messages, one after another
        for message in messages:
            _require_message(quantizer, message)
    return messages


def _require_message(quantizer: Any, message: Any) -> None:
    if not hasattr(message, "dequantize"):
        raise _fail(quantizer, f"gives {type(message).__name__} as a message; return one that has dequantize()")


def _fail(quantizer: Any, what: str) -> ConfigError:
    return ConfigError(f"quantizer {getattr(quantizer, 'name', quantizer)!r} {what}")


def _check_zero(quantizer: Any, dimension: int) -> None:
    message = quantizer.quantize(np.zeros(dimension, np.float32), key=Key(seed=0))
    _require_message(quantizer, message)
    zeros = message.dequantize()
    if zeros.shape != (dimension,) or np.any(zeros != 0):
        raise _fail(quantizer, f"does not send zeros to zeros at dimension={dimension}")


def _check_keys_and_batches(quantizer: Any, update: Float32, seed: int) -> None:
    keys = [Key(seed=seed, round=1, client=client) for client in range(8)]
    updates = np.stack([update * np.float32(client + 1) for client in range(8)])
    one_by_one = [quantizer.quantize(row, key=key) for row, key in zip(updates, keys, strict=True)]
    again = [quantizer.quantize(row, key=key) for row, key in zip(updates, keys, strict=True)]
    batch = list(quantize_all(quantizer, updates, keys))
    if one_by_one != again:
        raise _fail(quantizer, "gives different messages for the same update and key")
    if one_by_one != batch:
        raise _fail(quantizer, "gives different messages in a batch than one by one")


def _check_moments(quantizer: Any, update: Float32, name: str, trials: int, seed: int) -> None:
    keys = [Key(seed=seed, round=2, client=client) for client in range(trials)]
    messages = quantizer.quantize_batch(np.broadcast_to(update, (trials, update.size)), keys)
    estimates = np.stack([message.dequantize() for message in messages]).astype(np.float64)  # (trials, p)
    if not np.isfinite(estimates).all():
        raise _fail(quantizer, f"gives non-finite estimates of {name} updates")
    exact = update.astype(np.float64)
    norm = float(np.sqrt((exact**2).sum()))
    # Projections onto the update and onto its signs catch a bias that single coordinates would hide.
    for direction, label in ((exact / norm, "along itself"), (np.sign(exact), "over its coordinates")):
        values = estimates @ direction
        error = abs(values.mean() - exact @ direction)
        allowed = SIGMAS * values.std() / math.sqrt(trials) + 1e-5 * norm * np.abs(direction).sum()
        if error > allowed:
            raise _fail(quantizer, f"is biased on {name} updates {label}: off by {error:.3g}, allowed {allowed:.3g}")
    squared = ((estimates - exact) ** 2).sum(axis=1) / norm**2
    bound = quantizer.variance_bound(update.size)
    if squared.mean() > bound + SIGMAS * squared.std() / math.sqrt(trials) + 1e-6:
        raise _fail(
            quantizer,
            f"has variance {squared.mean():.4g} ||x||^2 on {name} updates of dimension={update.size}, "
            f"above its variance_bound={bound:.4g}",
        )
