"""Steps: what a local step does with its gradient, and the precision in which that is computed.

One implementation for all executors that differentiate: params, gradient and state are flat, (p,) for one client
or (jobs, p) for many. All is done in place by tensor operations, so a CUDA graph can hold it.
"""

import math
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from fedpaq.clients.work import LocalWork
from fedpaq.config import parse_optimizer
from fedpaq.errors import ConfigError

FIRST, SECOND, EPSILON = 0.9, 0.999, 1e-8  # AdamW's averages and the least denominator, as in PyTorch


class Optimizer:
    """SGD (line 9 of Algorithm 1), momentum or AdamW; its state is zero when a client starts its round."""

    def __init__(self, text: str, params: Tensor) -> None:
        self._name, self._number = parse_optimizer(text)
        states = {"sgd": 0, "momentum": 1, "adamw": 2}[self._name]
        self._state = [torch.zeros_like(params) for _ in range(states)]
        self._steps = torch.zeros((), device=params.device, dtype=torch.float32)

    def reset(self) -> None:
        """Forget the last client."""
        for values in (*self._state, self._steps):
            values.zero_()

    def step(self, params: Tensor, gradient: Tensor, step_size: float | Tensor) -> None:
        """Change params in place; ``step_size`` is a number or a tensor that fits them."""
        if self._name == "sgd":
            params.sub_(step_size * gradient)
        elif self._name == "momentum":
            (velocity,) = self._state
            params.sub_(step_size * velocity.mul_(self._number).add_(gradient))
        else:
            self._steps.add_(1)
            mean, square = self._state
            mean.lerp_(gradient, 1 - FIRST)
            square.mul_(SECOND).addcmul_(gradient, gradient, value=1 - SECOND)
            denominator = (square / self._weight(SECOND)).sqrt_().add_(EPSILON)
            slope = mean / self._weight(FIRST) / denominator
            params.sub_(step_size * slope.add_(params, alpha=self._number))

    def _weight(self, kept: float) -> Tensor:
        """Return 1 - kept^steps: what an average that began at zero has seen."""
        return -torch.expm1(self._steps * math.log(kept))


def autocast(work: LocalWork, device: torch.device) -> AbstractContextManager[None]:
    """Compute what is inside in the work's precision."""
    return torch.autocast(device.type, torch.bfloat16, enabled=work.precision == "bfloat16")


def require_plain(name: str, work: LocalWork) -> None:
    """Raise ConfigError unless the work is plain SGD in float32, all that a compiled executor knows."""
    if (work.optimizer, work.precision) != ("sgd", "float32"):
        raise ConfigError(
            f"executor={name!r} knows optimizer='sgd' and precision='float32', not {work.optimizer!r} and "
            f"{work.precision!r}; choose executor='auto'"
        )
