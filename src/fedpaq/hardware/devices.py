"""Devices: where the arrays of a run live: data, updates and, where the mean is made there, params on the device.

A callback and a checkpoint get params as an array of the host, copied for them.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpaq.arrays import AnyArray
from fedpaq.errors import ConfigError

BUDGET = 2**33  # bytes of GPU memory for one part of a round: larger parts do not run faster


def require_device(device: str | torch.device) -> torch.device:
    """Return the device named, with its number, or raise ConfigError if it cannot be used here."""
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"device={device!r} is not known to torch; choose 'cpu' or 'cuda'") from error
    if chosen.type == "cpu":
        return torch.device("cpu")
    if chosen.type != "cuda":
        raise ConfigError(f"device={device!r} is not supported; choose 'cpu' or 'cuda'")
    if not torch.cuda.is_available():
        raise ConfigError(f"device={device!r}: torch finds no CUDA device here; choose 'cpu'")
    number = torch.cuda.current_device() if chosen.index is None else chosen.index
    if number >= torch.cuda.device_count():
        raise ConfigError(f"device={device!r} does not exist; choose cuda:0..{torch.cuda.device_count() - 1}")
    return torch.device("cuda", number)


def to_array(values: Any) -> AnyArray:
    """Return a tensor of any device as an array, and an array as it is."""
    if isinstance(values, Tensor) and values.is_cuda:  # through pinned memory: ten times faster, and kept for the next
        return torch.empty(values.shape, dtype=values.dtype, pin_memory=True).copy_(values).numpy()
    return values.numpy() if isinstance(values, Tensor) else np.asarray(values)


def to_tensor(values: Any, device: torch.device) -> Tensor:
    """Return an array as a tensor on ``device``, unsigned 64-bit numbers as int64 of the same bits."""
    if getattr(values, "dtype", None) == "uint64":
        values = values.view("int64")
    return torch.as_tensor(values, device=device)
