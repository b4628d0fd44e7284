"""Problem: what is learnt. Data, who holds it, a model and a loss, seen through one flat vector.

f(x) = mean over samples of loss(model_x(input), target) + regularization / 2 * ||x||^2,
where x = ``params`` is the flat float32 concatenation of the module's trainable parameters.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from fedpaq.arrays import Float32, Float64, Int64
from fedpaq.config import require_positive
from fedpaq.errors import ConfigError
from fedpaq.problems import evaluation
from fedpaq.problems.dense_network import DenseNetwork, Loss, recognise
from fedpaq.problems.evaluation import Evaluation
from fedpaq.problems.partitions import Partition
from fedpaq.problems.trial import as_tensor, draws, require_types, try_out

FIXED = frozenset({"model", "loss", "inputs", "targets", "partition", "regularization"})


@dataclass(frozen=True)
class ExactConstants:
    """Constants a problem knows exactly, for checking the theory against."""

    smoothness: float  # L
    strong_convexity: float  # mu
    gradient_variance: float  # sigma^2 of a single-sample gradient
    optimum: Float64  # x*
    minimum: float  # f(x*)


def require_problem(given: object) -> None:
    """Raise ConfigError unless this is a problem."""
    if not isinstance(given, Problem):
        raise ConfigError(f"problem={given!r} is not a Problem; make one, or load one with fedpaq.problems.load")


class Problem:
    """Any ``torch.nn.Module``, loss and arrays, shared among clients by a partition.

    ``loss(outputs, targets)`` returns the mean over the batch, and nothing else that it remembers. ``model`` is
    never modified: its current parameters become ``initial_params``. The parts of a problem are fixed: for other data
    or another loss make a new problem.
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
        require_types(model, loss, partition, name)
        if known is not None and not isinstance(known, ExactConstants):
            raise ConfigError(f"known={known!r} is not ExactConstants; leave it out where they are not known")
        self.model, self.loss, self.partition = model, loss, partition
        self.regularization, self.name, self.known = float(regularization), name, known
        self.inputs = as_tensor("inputs", inputs)  # (N, ...)
        self.targets = as_tensor("targets", targets).to(self.inputs.device)  # (N, ...)
        self._parameters = {key: value.detach() for key, value in model.named_parameters() if value.requires_grad}
        self._frozen = {
            key: value.detach().clone() for key, value in model.named_parameters() if not value.requires_grad
        }
        self._buffers = {key: value.detach().clone() for key, value in model.named_buffers()}
        self._outputs_per_row, self._label_kind = try_out(self)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in FIXED and name in self.__dict__:
            raise ConfigError(f"{name} of a problem is fixed, since much follows from it; make a new Problem")
        super().__setattr__(name, value)

    @property
    def dimension(self) -> int:
        """p."""
        return sum(value.numel() for value in self._parameters.values())

    @property
    def num_clients(self) -> int:
        """n."""
        return self.partition.num_clients

    @cached_property
    def changing(self) -> frozenset[str]:
        """The frozen parameters that a call of the module changes, as a moving average does: tried on two samples."""
        copies = {key: value.clone() for key, value in self._frozen.items()}
        if not copies:
            return frozenset()
        before = {key: value._version for key, value in copies.items()}
        flat = torch.from_numpy(self.initial_params).to(self.inputs.device)
        with torch.no_grad(), torch.random.fork_rng(devices=[flat.device] if flat.is_cuda else []):
            self._called({**self.unflatten(flat), **copies}, self.inputs[:2])
        return frozenset(key for key, value in copies.items() if value._version != before[key])

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
    def initial_params(self) -> Float32:
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

        Buffers and frozen parameters start from the module's own for every call and changes to them are discarded:
        they are not part of x.
        """
        return self.call(self.unflatten(params), inputs)

    def call(self, parts: dict[str, Tensor], inputs: Tensor) -> Tensor:
        """Return the model's outputs under the given tensors, named as its parameters."""
        frozen = self._on(inputs.device, self._frozen)
        return self._called({**parts, **frozen, **{key: frozen[key].clone() for key in self.changing}}, inputs)

    def _called(self, parameters: dict[str, Tensor], inputs: Tensor) -> Tensor:
        buffers = {key: value.clone() for key, value in self._on(inputs.device, self._buffers).items()}
        with self.quiet():
            result: Tensor = torch.func.functional_call(self.model, {**parameters, **buffers}, (inputs,))
        return result

    def replica(self, parts: dict[str, Tensor]) -> nn.Module:
        """Return a copy of the module whose parameters are the given tensors (in place), under their names.

        Its buffers are copies, and so is what is ``changing``; what it does to them must be undone before each call to
        equal ``outputs``.
        """
        device, named = next(iter(parts.values())).device, dict(self.model.named_parameters())
        memo: dict[int, Any] = {id(named[key]): nn.Parameter(value) for key, value in parts.items()}
        for key, value in self._on(device, self._frozen).items():
            memo[id(named[key])] = nn.Parameter(value.clone() if key in self.changing else value, requires_grad=False)
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
        return evaluation.evaluate(self, params)

    def evaluate_batch(self, params: Float32) -> list[Evaluation]:
        """Return the evaluation of each row of ``params`` (runs, p); dense networks share the products."""
        return evaluation.evaluate_batch(self, params)

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

    def batch(self, samples: Int64 | Tensor) -> tuple[Tensor, Tensor]:
        """Return the inputs and targets of the given sample numbers."""
        index = torch.as_tensor(samples, device=self.inputs.device)
        return self.inputs[index], self.targets[index]

    def to(self, device: str | torch.device) -> Problem:
        """Return this problem with data and model constants on ``device`` (itself if already there)."""
        inputs = self.inputs.to(device)
        if inputs.device == self.inputs.device:  # "cuda" and "cuda:0" may be the same
            return self
        moved = copy.copy(self)
        for name in ("_held_samples", "dense_data", "inputs", "targets", "loss"):
            moved.__dict__.pop(name, None)
        if self._held_samples is not None:
            moved._held_samples = self._held_samples.to(device)
        moved.inputs, moved.targets = inputs, self.targets.to(device)
        weighted = isinstance(self.loss, nn.Module)  # its class weights are tensors too
        moved.loss = copy.deepcopy(self.loss).to(device) if weighted else self.loss  # type: ignore[attr-defined]
        moved._frozen = self._on(torch.device(device), self._frozen)
        moved._buffers = self._on(torch.device(device), self._buffers)
        return moved

    def evaluated_on(self, samples: Int64) -> Problem:
        """Return this problem with the loss evaluated on the given samples only: cheap, for tuning."""
        thinned = copy.copy(self)
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

    def _held(self, rows: int = evaluation.ROWS) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the samples some client holds, ``rows`` at a time, or fewer where a row has many outputs."""
        held, rows = self._held_samples, max(1, min(rows, evaluation.OUTPUTS // self._outputs_per_row))
        total = len(self.inputs) if held is None else len(held)
        if self.has_batch_statistics:  # then chunks are of about one size: a single sample would have no variance
            rows = math.ceil(total / math.ceil(total / rows))
        for start in range(0, total, rows):
            chunk = slice(start, start + rows) if held is None else held[start : start + rows]
            yield self.inputs[chunk], self.targets[chunk]

    @staticmethod
    def _on(device: torch.device, values: dict[str, Tensor]) -> dict[str, Tensor]:
        return {key: value.to(device) for key, value in values.items()}
