"""Landscape: the loss f = 1/n sum_i f_i of a problem, its derivatives and its samples' gradients.

NumPy in and out, in double precision where the module allows it. A sample that client i holds
weighs 1 / (n m_i), so every client counts the same whatever it holds, as in the paper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedpaq.problems import Problem

Float64 = npt.NDArray[np.float64]
ROWS = 4096  # samples per pass: large products, bounded memory
GRADIENT_BYTES = 64 * 2**20  # per-sample gradients alive at once


class Landscape:
    """f of one problem: ``value``, ``gradient``, ``hessian_product``, ``sample_gradients``."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem.to("cpu")
        held = np.unique(problem.partition.indices)
        self._dtype = torch.float64
        self._inputs, self._targets = self._cast(held)
        try:
            self.value(np.asarray(problem.initial_params, np.float64))
        except RuntimeError:  # buffers or frozen parameters that are float32
            self._dtype = torch.float32
            self._inputs, self._targets = self._cast(held)

    @cached_property
    def weights(self) -> Float64:
        """The weight of each held sample; they sum to 1."""
        partition = self.problem.partition
        sizes = partition.sizes()
        each = np.repeat(1.0 / (partition.num_clients * sizes), sizes)
        per_sample = np.bincount(partition.indices, weights=each)
        return np.asarray(per_sample[np.unique(partition.indices)], np.float64)

    @property
    def num_samples(self) -> int:
        """How many distinct samples the clients hold."""
        return len(self._inputs)

    def value(self, params: Float64) -> float:
        """Return f(x)."""
        with torch.no_grad():
            x = self._tensor(params)
            return sum(share * float(self.problem.objective(x, *batch)) for share, batch in self._batches())

    def gradient(self, params: Float64) -> Float64:
        """Return grad f(x)."""
        return self._accumulate(
            lambda batch: torch.func.grad(self.problem.objective)(self._tensor(params), *batch)
        )

    def hessian_product(self, params: Float64, direction: Float64) -> Float64:
        """Return the Hessian of f at x times ``direction``."""

        def product(batch: tuple[Tensor, Tensor]) -> Tensor:
            gradient = torch.func.grad(lambda x: self.problem.objective(x, *batch))
            at, towards = self._tensor(params), self._tensor(direction)
            along: Tensor = torch.func.jvp(gradient, (at,), (towards,))[1]
            return along

        return self._accumulate(product)

    def sample_gradients(self, params: Float64, samples: npt.NDArray[np.int64]) -> Iterator[Float64]:
        """Yield the gradients at x of the held samples numbered 0.., in blocks (rows, p)."""
        x = self._tensor(params)
        per_sample = torch.func.vmap(torch.func.grad(self.problem.objective), in_dims=(None, 0, 0))
        rows = max(1, GRADIENT_BYTES // (8 * self.problem.dimension))
        for start in range(0, len(samples), rows):
            at = torch.from_numpy(samples[start : start + rows])
            block = per_sample(x, self._inputs[at].unsqueeze(1), self._targets[at].unsqueeze(1))
            yield block.detach().double().numpy()

    def output_gradients(self, params: Float64) -> Iterator[Float64]:
        """Yield the gradients at x of the model's one output, of every held sample: blocks (rows, p)."""

        def output(x: Tensor, inputs: Tensor) -> Tensor:
            return self.problem.outputs(x, inputs).reshape(())

        per_sample = torch.func.vmap(torch.func.grad(output), in_dims=(None, 0))
        rows = max(1, GRADIENT_BYTES // (8 * self.problem.dimension))
        for inputs in torch.split(self._inputs.unsqueeze(1), rows):
            yield per_sample(self._tensor(params), inputs).detach().double().numpy()

    def outputs(self, params: Float64) -> Float64:
        """Return the model's outputs on every held sample."""
        with torch.no_grad():
            return self.problem.outputs(self._tensor(params), self._inputs).double().numpy()

    @property
    def targets(self) -> Tensor:
        """The targets of the held samples."""
        return self._targets

    @cached_property
    def _groups(self) -> list[tuple[float, Tensor]]:
        """(weight, samples of that weight): one group where all clients hold equally many."""
        values, group_of = np.unique(np.round(self.weights, 15), return_inverse=True)
        return [
            (float(value), torch.from_numpy(np.flatnonzero(group_of == i))) for i, value in enumerate(values)
        ]

    def _batches(self) -> Iterator[tuple[float, tuple[Tensor, Tensor]]]:
        for weight, members in self._groups:
            for at in torch.split(members, ROWS):
                yield weight * len(at), (self._inputs[at], self._targets[at])

    def _accumulate(self, term: Callable[[tuple[Tensor, Tensor]], Tensor]) -> Float64:
        total = np.zeros(self.problem.dimension)
        for share, batch in self._batches():
            total += share * term(batch).detach().double().numpy()
        return total

    def _tensor(self, values: Float64) -> Tensor:
        return torch.as_tensor(np.asarray(values)).to(self._dtype)

    def _cast(self, held: npt.NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        return tuple(  # type: ignore[return-value]
            values[torch.from_numpy(held)].to(self._dtype)
            if values.is_floating_point()
            else values[torch.from_numpy(held)]
            for values in (self.problem.inputs, self.problem.targets)
        )
