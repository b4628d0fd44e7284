"""Samples: arrays of inputs and targets as tensors, and what kind of labels the targets are."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedpaq.errors import ConfigError

LabelKind = Literal["classes", "binary"]


def as_tensor(name: str, values: Any) -> Tensor:
    """Return floats as float32, bytes and bools among inputs too, other integers as int64."""
    tensor = values.detach() if isinstance(values, Tensor) else _from_array(name, values)
    if tensor.ndim == 0 or len(tensor) == 0:
        raise ConfigError(f"{name}.shape={tuple(tensor.shape)} holds no samples; pass one row a sample")
    if tensor.is_complex():
        raise ConfigError(f"{name}.dtype={tensor.dtype} is complex; pass real numbers")
    is_pixels = name == "inputs" and tensor.dtype in (torch.uint8, torch.bool)
    wanted = torch.float32 if tensor.is_floating_point() or is_pixels else torch.int64
    return tensor.to(wanted).contiguous()


def _from_array(name: str, values: Any) -> Tensor:
    try:
        array = np.asarray(values, order="C")
        # torch warns about arrays it could write to by accident, such as memory maps.
        return torch.as_tensor(array if array.flags.writeable else array.copy())
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{name} cannot become a tensor ({error}); pass numbers in a rectangular array"
        ) from error


def label_kind(outputs: Tensor, targets: Tensor) -> LabelKind | None:
    """Tell how accuracy is counted: class numbers, zeros and ones for a single logit, or not at all."""
    if outputs.ndim == 2 and outputs.shape[1] > 1:
        return "classes" if targets.ndim == 1 and not targets.is_floating_point() else None
    is_single = outputs[0].numel() == 1 and targets[0].numel() == 1
    return "binary" if is_single and bool(((targets == 0) | (targets == 1)).all()) else None


def require_labels(targets: Tensor, num_outputs: int) -> None:
    """Raise ConfigError unless every target is one of the model's outputs."""
    low, high = int(targets.min()), int(targets.max())
    if low < 0 or high >= num_outputs:
        raise ConfigError(
            f"target={low if low < 0 else high} is outside the label range; the model has {num_outputs} "
            f"outputs, so labels are 0..{num_outputs - 1}"
        )


def count_correct(outputs: Tensor, targets: Tensor, kind: LabelKind) -> int:
    """Count right predictions: the largest of several outputs, or the sign of a single logit."""
    if kind == "classes":
        return int((outputs.argmax(1) == targets).sum())
    return int(((outputs.reshape(-1) > 0) == (targets.reshape(-1) > 0.5)).sum())
