"""Problem: what is learnt. Data, who holds it, a model and a loss, seen through one flat vector.

f(x) = mean over samples of loss(model_x(input), target) + regularization / 2 * ||x||^2,
where x = ``params`` is the flat float32 concatenation of the module's trainable parameters.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from fedpaq.config import require_positive
from fedpaq.errors import ConfigError, DatasetError
from fedpaq.problems.dense_network import DenseNetwork, recognise
from fedpaq.problems.partitions import Partition
from fedpaq.problems.trial import (
    THRESHOLD,
    as_tensor,
    count_correct,
    draws,
    has_classes,
    label_kind,
    require_labels,
    try_loss,
    try_model,
)

Loss = Callable[[Tensor, Tensor], Tensor]
EVALUATION_ROWS = 8192  # samples per forward pass: large products, bounded memory
EVALUATION_OUTPUTS = 2**26  # numbers of the model's outputs per forward pass: a language model has millions a sample


@dataclass(frozen=True)
class ExactConstants:
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
        known: ExactConstants | None = None,
    ) -> None:
        require_positive("regularization", regularization, zero_allowed=True)
        _require_types(model, partition)
        self.model, self.loss, self.partition = model, loss, partition
        self.regularization, self.name, self.known = float(regularization), name, known
        self.inputs = as_tensor("inputs", inputs)  # (N, ...)
        self.targets = as_tensor("targets", targets).to(self.inputs.device)  # (N, ...)
        self._parameters = {key: value.detach() for key, value in model.named_parameters() if value.requires_grad}
        self._frozen = {
            key: value.detach().clone() for key, value in model.named_parameters() if not value.requires_grad
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

    def constants(self) -> list[Tensor]:
        """Return what the model computes with besides x: its frozen parameters and its buffers."""
        return [*self._frozen.values(), *self._buffers.values()]

    @cached_property
    def draws_at_random(self) -> bool:
        """Whether the module itself draws random numbers while training (dropout): tried on two samples."""
        return draws(self)

    @cached_property
    def is_recurrent(self) -> bool:
        """Whether the module holds an LSTM, GRU or RNN."""
        return any(isinstance(each, nn.RNNBase) for each in self.model.modules())

    @cached_property
    def has_batch_statistics(self) -> bool:
        """Whether the module normalises by the samples that are computed together."""
        return any(isinstance(each, _NormBase) for each in self.model.modules())

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Silence cuDNN's advice to move a recurrent layer's weights: they are views of the flat params."""
        if not (self.is_recurrent and self.inputs.is_cuda):
            yield
            return
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous")
            yield

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
        return self.call(self.unflatten(params), inputs)

    def call(self, parts: dict[str, Tensor], inputs: Tensor) -> Tensor:
        """Return the model's outputs under the given tensors, named as its parameters."""
        frozen = self._on(inputs.device, self._frozen)
        buffers = {key: value.clone() for key, value in self._on(inputs.device, self._buffers).items()}
        with self.quiet():
            result: Tensor = torch.func.functional_call(self.model, {**parts, **frozen, **buffers}, (inputs,))
        return result

    def replica(self, parts: dict[str, Tensor]) -> nn.Module:
        """Return a copy of the module whose parameters are the given tensors (in place), under their names.

        Its buffers are copies; what it does to them must be undone before each call to equal ``outputs``.
        """
        device, named = next(iter(parts.values())).device, dict(self.model.named_parameters())
        memo: dict[int, Any] = {id(named[key]): nn.Parameter(value) for key, value in parts.items()}
        for key, value in self._on(device, self._frozen).items():
            memo[id(named[key])] = nn.Parameter(value, requires_grad=False)
        for key, value in self.model.named_buffers():
            memo[id(value)] = self._buffers[key].to(device, copy=True)
        for value in (each for module in self.model.modules() for each in vars(module).values()):
            if isinstance(value, Tensor) and not value.is_leaf:  # left by a hook in the last call, as pruning does
                memo[id(value)] = value.detach()
        return copy.deepcopy(self.model, memo)

    def objective(self, params: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the regularised mean loss of ``params`` on a batch, differentiable."""
        value = self.loss(self.outputs(params, inputs), targets)
        if self.regularization:
            value = value + 0.5 * self.regularization * params.square().sum()
        return value

    def gradient(self, params: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the gradient of ``objective`` (p,), in a form vmap can take.

        Differentiates by the module's tensors, not by the flat vector: the backward pass of a slice
        would write p zeros for each of them.
        """
        by_part = torch.func.grad(lambda parts: self.loss(self.call(parts, inputs), targets))
        parts = by_part(self.unflatten(params))
        flat = torch.cat([parts[key].reshape(-1) for key in self._parameters])
        return flat + self.regularization * params if self.regularization else flat

    def evaluate(self, params: Any) -> Evaluation:
        """Return training loss over every sample a client holds, and accuracy for label targets."""
        if not isinstance(params, Tensor):
            params = np.array(params, np.float32)  # its own copy: torch warns of arrays that cannot be written
        flat = torch.as_tensor(params, dtype=torch.float32, device=self.inputs.device)
        if flat.shape != (self.dimension,):
            raise ConfigError(
                f"params.shape={tuple(flat.shape)} does not fit the model; it has dimension={self.dimension}"
            )
        kind = self._label_kind
        total, correct, counted = 0.0, 0, 0
        with torch.no_grad(), _evaluating(self.model):
            for x, y in self._held():
                outputs = self.outputs(flat, x)
                total += float(self.loss(outputs, y)) * len(x)
                correct += 0 if kind is None else count_correct(outputs, y, kind)
                counted += len(x)
        regular = 0.5 * self.regularization * float(flat.double().square().sum())
        return Evaluation(total / counted + regular, None if kind is None else correct / counted)

    @cached_property
    def dense_network(self) -> DenseNetwork | None:
        """The model as a dense ReLU network, where it is one."""
        return recognise(self.model, self.loss, self.inputs, self.targets)

    @cached_property
    def dense_data(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets as the dense network takes them."""
        if self.dense_network is None:
            raise ConfigError("model is not a dense ReLU network; its data has another form")
        return self.dense_network.data(self.inputs, self.targets)

    def evaluate_batch(self, params: npt.NDArray[np.float32]) -> list[Evaluation]:
        """Return the evaluation of each row of ``params`` (runs, p); dense networks share the products."""
        network = self.dense_network
        if network is None or len(params) == 1:
            return [self.evaluate(row) for row in params]
        flat = torch.as_tensor(params, dtype=torch.float32, device=self.inputs.device)
        if flat.is_cuda:
            return self.evaluate_at_once(network, flat)
        kind = self._label_kind
        totals, correct, counted = [0.0] * len(flat), [0] * len(flat), 0
        at_once = max(256, EVALUATION_ROWS * 64 // (len(flat) * max(network.widths[1:])))
        with torch.no_grad():
            for x, y in self._held(at_once):
                counted += len(x)
                for run, rows in enumerate(network.outputs(flat, x.flatten(1))):
                    outputs = rows[:, 0] if network.squeezed else rows
                    totals[run] += float(self.loss(outputs, y)) * len(x)
                    correct[run] += 0 if kind is None else count_correct(outputs, y, kind)
        regular = 0.5 * self.regularization * flat.double().square().sum(1)
        return [
            Evaluation(total / counted + float(extra), None if kind is None else right / counted)
            for total, right, extra in zip(totals, correct, regular, strict=True)
        ]

    def evaluate_at_once(self, network: DenseNetwork, params: Tensor) -> list[Evaluation]:
        """Return the same with nothing read back before the end: what a GPU waits for."""
        kind, counted = self._label_kind, 0
        losses = torch.zeros(len(params), dtype=torch.float64, device=params.device)
        correct = torch.zeros_like(losses)
        with torch.no_grad():
            for x, y in self._held(max(256, 2**28 // (len(params) * max(network.widths[1:])))):
                counted += len(x)
                x, y = network.data(x, y)
                outputs = network.outputs(params, x)
                losses += network.losses(outputs, y) * len(x)
                if kind == "classes":
                    correct += (outputs.argmax(2) == y).sum(1)
                elif kind is not None:
                    correct += ((outputs > THRESHOLD[kind]) == (y > 0.5)).sum((1, 2))
        regular = 0.5 * self.regularization * params.double().square().sum(1)
        found = torch.stack([losses / counted + regular, correct / counted], 1).tolist()
        return [Evaluation(loss, None if kind is None else share) for loss, share in found]

    def batch(self, samples: npt.NDArray[np.int64] | Tensor) -> tuple[Tensor, Tensor]:
        """Return the inputs and targets of the given sample numbers."""
        index = torch.as_tensor(samples, device=self.inputs.device)
        return self.inputs[index], self.targets[index]

    def to(self, device: str | torch.device) -> Problem:
        """Return this problem with data and model constants on ``device`` (itself if already there)."""
        inputs = self.inputs.to(device)
        if inputs.device == self.inputs.device:  # "cuda" and "cuda:0" may be the same
            return self
        moved = object.__new__(Problem)
        moved.__dict__.update(self.__dict__)
        for name in ("_held_samples", "dense_data"):
            moved.__dict__.pop(name, None)
        if self._held_samples is not None:
            moved._held_samples = self._held_samples.to(device)
        moved.inputs, moved.targets = inputs, self.targets.to(device)
        moved._frozen = self._on(torch.device(device), self._frozen)
        moved._buffers = self._on(torch.device(device), self._buffers)
        return moved

    def evaluated_on(self, samples: npt.NDArray[np.int64]) -> Problem:
        """Return this problem with the loss evaluated on the given samples only: cheap, for tuning."""
        thinned = object.__new__(Problem)
        thinned.__dict__.update(self.__dict__)
        thinned._held_samples = torch.from_numpy(samples).to(self.inputs.device)
        return thinned

    @cached_property
    def _held_samples(self) -> Tensor | None:
        """Sorted numbers of the samples some client holds; None when that is all of them."""
        used = np.zeros(len(self.inputs), bool)
        used[self.partition.indices] = True
        if used.all():
            return None
        return torch.from_numpy(np.flatnonzero(used)).to(self.inputs.device)

    def _held(self, rows: int = EVALUATION_ROWS) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the samples some client holds, ``rows`` at a time, or fewer where a row has many outputs."""
        held, rows = self._held_samples, max(1, min(rows, EVALUATION_OUTPUTS // self._outputs_per_row))
        total = len(self.inputs) if held is None else len(held)
        if self.has_batch_statistics:  # then chunks are of about one size: a single sample would have no variance
            rows = math.ceil(total / math.ceil(total / rows))
        for start in range(0, total, rows):
            chunk = slice(start, start + rows) if held is None else held[start : start + rows]
            yield self.inputs[chunk], self.targets[chunk]

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
            raise ConfigError(f"partition names sample {low if low < 0 else high}; choose 0..{len(self.inputs) - 1}")
        for name, values in (("inputs", self.inputs), ("targets", self.targets)):
            if not bool(torch.isfinite(values).all()):
                raise DatasetError(f"{name} hold NaN or infinity; clean the data first")
        with _evaluating(self.model):  # a trial must not move torch's global generator
            outputs = try_model(self)
        self._outputs_per_row = outputs[0].numel()
        if has_classes(outputs, self.targets):
            require_labels(self.targets, outputs.shape[1])
        try_loss(self, outputs)
        self._label_kind = label_kind(outputs, self.targets, self.loss)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluate without dropout; batch statistics stay as in training, since buffers are not learnt.

    Attention goes its usual way too: PyTorch's fast path for evaluation warns of prototypes.
    """
    training = [each for each in model.modules() if each.training and not isinstance(each, _NormBase)]
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    for module in training:
        module.training = False
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for module in training:
            module.training = True


def _require_types(model: Any, partition: Any) -> None:
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model={model!r} is not a torch.nn.Module; pass an instance of one")
    if not isinstance(partition, Partition):
        raise ConfigError(
            f"partition={partition!r} is not a Partition; make one with iid, dirichlet, by_label "
            "or Partition.from_lists"
        )
