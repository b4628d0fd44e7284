"""Trial: a model and a loss run once on two samples, so that what cannot work fails here, clearly."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedpaq.errors import ConfigError

if TYPE_CHECKING:
    from fedpaq.problems.problem import Problem


def try_model(problem: Problem) -> Tensor:
    """Return the model's outputs for the first samples, or raise ConfigError."""
    x = problem.inputs[:2]
    flat = torch.from_numpy(problem.initial_params).to(x.device)
    if not bool(torch.isfinite(flat).all()):
        raise ConfigError("model has parameters that are NaN or infinity; initialise it first")
    try:
        with torch.no_grad():
            outputs = problem.outputs(flat, x)
    except Exception as error:
        raise ConfigError(
            f"model failed on inputs of shape {tuple(x.shape)} and type {x.dtype}: "
            f"{type(error).__name__}: {error}"
        ) from error
    if not isinstance(outputs, Tensor) or outputs.ndim == 0 or len(outputs) != len(x):
        raise ConfigError(
            f"model returned {_shape(outputs)} for {len(x)} inputs; return a tensor with one row an input"
        )
    return outputs


def try_loss(problem: Problem, outputs: Tensor) -> None:
    """Run the loss on those outputs, and on each of them twice, which must not change a mean."""
    y = problem.targets[:2]
    try:
        with torch.no_grad():
            once = torch.as_tensor(problem.loss(outputs, y))
            twice = torch.as_tensor(problem.loss(torch.cat([outputs, outputs]), torch.cat([y, y])))
    except Exception as error:
        raise ConfigError(
            f"loss failed on outputs of shape {tuple(outputs.shape)} and targets of shape "
            f"{tuple(y.shape)}: {type(error).__name__}: {error}"
        ) from error
    if once.numel() != 1 or not math.isfinite(float(once)):
        raise ConfigError(f"loss={once} is not one finite number; return the mean over the batch")
    if not math.isclose(float(once), float(twice), rel_tol=1e-3, abs_tol=1e-6):
        raise ConfigError(
            f"loss={float(once):.6g} of {len(y)} samples became {float(twice):.6g} when each was counted "
            "twice; return the mean over the batch, not the sum"
        )


def _shape(outputs: Any) -> str:
    return f"shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else type(outputs).__name__
