"""Problem: what is learnt. Data, who holds it, a model and a loss, seen through one flat vector.

f(x) = mean over samples of loss(model_x(input), target) + regularization / 2 * ||x||^2,
where x = ``params`` is the flat float32 concatenation of the module's trainable parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from fedpaq.config import require_positive
from fedpaq.errors import ConfigError, DatasetError
from fedpaq.problems.dense_network import DenseNetwork, recognise
from fedpaq.problems.partitions import Partition

Loss = Callable[[Tensor, Tensor], Tensor]
EVALUATION_ROWS = 8192  # samples per forward pass: large products, bounded memory


@dataclass(frozen=True)
class Known:
    """Constants a problem knows exactly, for checking the theory against."""

    smoothness: float  # L
    strong_convexity: float  # mu
    gradient_variance: float  # sigma^2 of a single-sample gradient
    optimum: npt.NDArray[np.float64]  # x*
    minimum: float  # f(x*)


@dataclass(frozen=True)
class Evaluation:
    """Training loss of some params, and accuracy where targets are labels."""

    loss: float
    accuracy: float | None


class Problem:
    """Any ``torch.nn.Module``, loss and arrays, shared among clients by a partition.

    ``loss(outputs, targets)`` returns the mean over the batch. ``model`` is never modified: its
    current parameters become ``initial_params``.
    """

    def __init__(
        self,
        *,
        model: nn.Module,
        loss: Loss,
        inputs: Any,
        targets: Any,
        partition: Partition,
        regularization: float = 0.0,
        name: str = "custom",
        known: Known | None = None,
    ) -> None:
        require_positive("regularization", regularization, zero_allowed=True)
        self.model, self.loss, self.partition = model, loss, partition
        self.regularization, self.name, self.known = float(regularization), name, known
        self.inputs = _as_tensor("inputs", inputs)  # (N, ...)
        self.targets = _as_tensor("targets", targets)  # (N, ...)
        self._parameters = {
            key: value.detach() for key, value in model.named_parameters() if value.requires_grad
        }
        self._frozen = {
            key: value.detach() for key, value in model.named_parameters() if not value.requires_grad
        }
        self._buffers = {key: value.detach().clone() for key, value in model.named_buffers()}
        self._check()

    @property
    def dimension(self) -> int:
        """p."""
        return sum(value.numel() for value in self._parameters.values())

    @property
    def num_clients(self) -> int:
        """n."""
        return self.partition.num_clients

    @property
    def has_buffers(self) -> bool:
        """Whether the module keeps state besides its parameters (running statistics, counters)."""
        return bool(self._buffers)

    @cached_property
    def draws_at_random(self) -> bool:
        """Whether the module itself draws random numbers while training (dropout)."""
        return any(module.p > 0 for module in self._dropouts())

    def _dropouts(self) -> list[_DropoutNd]:
        return [m for m in self.model.modules() if isinstance(m, _DropoutNd) and m.training]

    @cached_property
    def initial_params(self) -> npt.NDArray[np.float32]:
        """x_0: the module's parameters when the problem was made, (p,) float32."""
        flat = torch.cat([value.reshape(-1).float() for value in self._parameters.values()])
        return flat.cpu().numpy().copy()

    def unflatten(self, params: Tensor) -> dict[str, Tensor]:
        """Return views of the flat ``params`` (p,) under the module's parameter names."""
        views, start = {}, 0
        for key, value in self._parameters.items():
            views[key] = params[start : start + value.numel()].view(value.shape)
            start += value.numel()
        return views

    def outputs(self, params: Tensor, inputs: Tensor) -> Tensor:
        """Return the model's outputs under ``params``.

        Buffers start from the module's own for every call and changes to them are discarded:
        they are not part of x.
        """
        state = {**self.unflatten(params), **self._on(params.device, self._frozen)}
        buffers = {key: value.clone() for key, value in self._on(params.device, self._buffers).items()}
        result: Tensor = torch.func.functional_call(self.model, {**state, **buffers}, (inputs,))
        return result

    def objective(self, params: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the regularised mean loss of ``params`` on a batch, differentiable."""
        value = self.loss(self.outputs(params, inputs), targets)
        if self.regularization:
            value = value + 0.5 * self.regularization * params.square().sum()
        return value

    def evaluate(self, params: Any) -> Evaluation:
        """Return training loss over every sample a client holds, and accuracy for label targets."""
        flat = torch.as_tensor(params, dtype=torch.float32)
        inputs, targets = self._held(flat.device)
        total, correct, counted = 0.0, 0, 0
        with torch.no_grad(), _silenced(self._dropouts()):
            for start in range(0, len(inputs), EVALUATION_ROWS):
                x, y = inputs[start : start + EVALUATION_ROWS], targets[start : start + EVALUATION_ROWS]
                outputs = self.outputs(flat, x)
                total += float(self.loss(outputs, y)) * len(x)
                hits = _correct(outputs, y)
                if hits is not None:
                    correct, counted = correct + hits, counted + len(x)
        regular = 0.5 * self.regularization * float(flat.double().square().sum())
        return Evaluation(total / len(inputs) + regular, correct / counted if counted else None)

    @cached_property
    def dense_network(self) -> DenseNetwork | None:
        """The model as a dense ReLU network, where it is one."""
        return recognise(self.model, self.loss, self.inputs, self.targets)

    def evaluate_batch(self, params: npt.NDArray[np.float32]) -> list[Evaluation]:
        """Return the evaluation of each row of ``params`` (runs, p); dense networks share the products."""
        network = self.dense_network
        if network is None or len(params) == 1:
            return [self.evaluate(row) for row in params]
        flat = torch.as_tensor(params, dtype=torch.float32)
        totals, hits = [0.0] * len(flat), [0] * len(flat)
        inputs, targets = self._held(flat.device)
        rows = max(256, EVALUATION_ROWS * 64 // (len(flat) * max(network.widths[1:])))
        counted = True
        with torch.no_grad():
            for start in range(0, len(inputs), rows):
                x, y = inputs[start : start + rows], targets[start : start + rows]
                for run, outputs in enumerate(network.outputs(flat, x)):
                    totals[run] += float(self.loss(outputs, y)) * len(x)
                    right = _correct(outputs, y)
                    counted, hits[run] = counted and right is not None, hits[run] + (right or 0)
        regular = 0.5 * self.regularization * flat.double().square().sum(1)
        return [
            Evaluation(total / len(inputs) + float(extra), right / len(inputs) if counted else None)
            for total, right, extra in zip(totals, hits, regular, strict=True)
        ]

    def batch(self, samples: npt.NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Return the inputs and targets of the given sample numbers."""
        index = torch.from_numpy(samples)
        return self.inputs[index], self.targets[index]

    def to(self, device: str | torch.device) -> Problem:
        """Return this problem with data and model constants on ``device`` (itself if already there)."""
        if torch.device(device) == self.inputs.device:
            return self
        moved = object.__new__(Problem)
        moved.__dict__.update(self.__dict__)
        moved.__dict__.pop("_held_samples", None)
        moved.inputs, moved.targets = self.inputs.to(device), self.targets.to(device)
        moved._frozen = self._on(torch.device(device), self._frozen)
        moved._buffers = self._on(torch.device(device), self._buffers)
        return moved

    @cached_property
    def _held_samples(self) -> Tensor | None:
        """Sorted numbers of the samples some client holds; None when that is all of them."""
        used = np.unique(self.partition.indices)
        if used.size == len(self.inputs):
            return None
        return torch.from_numpy(used).to(self.inputs.device)

    def _held(self, device: torch.device) -> tuple[Tensor, Tensor]:
        home = self.to(device)
        if home._held_samples is None:
            return home.inputs, home.targets
        return home.inputs[home._held_samples], home.targets[home._held_samples]

    @staticmethod
    def _on(device: torch.device, values: dict[str, Tensor]) -> dict[str, Tensor]:
        return {key: value.to(device) for key, value in values.items()}

    def _check(self) -> None:
        if not self._parameters:
            raise ConfigError("model has no trainable parameters; there is nothing to learn")
        if len(self.inputs) != len(self.targets):
            raise ConfigError(
                f"inputs hold {len(self.inputs)} samples but targets {len(self.targets)}; they must match"
            )
        low, high = int(self.partition.indices.min()), int(self.partition.indices.max())
        if low < 0 or high >= len(self.inputs):
            raise ConfigError(
                f"partition names sample {low if low < 0 else high}; choose 0..{len(self.inputs) - 1}"
            )
        if not bool(torch.isfinite(self.inputs).all()):
            raise DatasetError("inputs hold NaN or infinity; clean the data first")
        outputs = self._try_out()
        if outputs.ndim == 2 and self.targets.ndim == 1 and not self.targets.is_floating_point():
            worst = [int(self.targets.min()), int(self.targets.max())]
            if worst[0] < 0 or worst[1] >= outputs.shape[1]:
                bad = worst[0] if worst[0] < 0 else worst[1]
                raise ConfigError(
                    f"target={bad} is outside the label range; the model has {outputs.shape[1]} outputs, "
                    f"so labels are 0..{outputs.shape[1] - 1}"
                )

    def _try_out(self) -> Tensor:
        """Run model and loss once on two samples, to fail here with a clear message."""
        flat = torch.from_numpy(self.initial_params)
        x, y = self.inputs[:2], self.targets[:2]
        try:
            with torch.no_grad():
                outputs = self.outputs(flat, x)
        except Exception as error:
            raise ConfigError(
                f"model failed on inputs of shape {tuple(x.shape)}: {type(error).__name__}: {error}"
            ) from error
        if self.targets.is_floating_point() or outputs.ndim != 2 or int(y.max()) < outputs.shape[1]:
            try:
                value = self.loss(outputs, y)
            except Exception as error:
                raise ConfigError(
                    f"loss failed on outputs of shape {tuple(outputs.shape)} and targets of shape "
                    f"{tuple(y.shape)}: {type(error).__name__}: {error}"
                ) from error
            if value.numel() != 1 or not math.isfinite(float(value)):
                raise ConfigError(f"loss={value} is not one finite number; return the mean over the batch")
        return outputs


@contextmanager
def _silenced(dropouts: list[_DropoutNd]) -> Iterator[None]:
    """Evaluate without dropout; batch statistics stay as in training, since buffers are not learnt."""
    for module in dropouts:
        module.training = False
    try:
        yield
    finally:
        for module in dropouts:
            module.training = True


def _as_tensor(name: str, values: Any) -> Tensor:
    tensor = values.detach() if isinstance(values, Tensor) else torch.as_tensor(np.asarray(values))
    if tensor.ndim == 0 or len(tensor) == 0:
        raise ConfigError(f"{name}.shape={tuple(tensor.shape)} holds no samples")
    if name == "inputs" and not tensor.is_floating_point() and tensor.dtype != torch.int64:
        tensor = tensor.float()
    if tensor.dtype in (torch.float64, torch.float16, torch.bfloat16):
        tensor = tensor.float()
    if name == "targets" and not tensor.is_floating_point():
        tensor = tensor.long()
    return tensor.contiguous()


def _correct(outputs: Tensor, targets: Tensor) -> int | None:
    """Count right predictions: the largest of several outputs, or the sign of a single logit."""
    if outputs.ndim == 2 and targets.ndim == 1 and not targets.is_floating_point():
        return int((outputs.argmax(1) == targets).sum())
    single = outputs.reshape(len(outputs), -1)
    labels = targets.reshape(len(targets), -1)
    if single.shape == labels.shape == (len(outputs), 1) and bool(((labels == 0) | (labels == 1)).all()):
        return int(((single > 0) == (labels > 0.5)).sum())
    return None
