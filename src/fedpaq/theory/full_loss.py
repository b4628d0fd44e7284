"""FullLoss: the loss f of a problem on all samples, its derivatives and its samples' gradients.

NumPy in and out, in double precision where the module allows it. There are two such losses, equal where
clients hold equally many samples and no sample twice:

    mean over clients   f = 1/n sum_i f_i, the paper's: a sample of client i weighs 1 / (n m_i)
    mean over samples   what ``Problem.evaluate`` and a run report: every held sample weighs the same
"""

import itertools
from collections.abc import Iterator
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedpaq.arrays import AnyArray, Float32, Float64, Int64
from fedpaq.problems import Partition, Problem

ROWS = 4096  # samples per pass: large products, bounded memory
GRADIENT_BYTES = 64 * 2**20  # per-sample gradients alive at once


class FullLoss:
    """f of one problem: ``value``, ``gradient``, ``hessian_product``, ``sample_gradients``."""

    def __init__(self, problem: Problem, mean_over: Literal["clients", "samples"] = "clients") -> None:
        self.problem = problem.to("cpu")
        weigh = weigh_clients if mean_over == "clients" else weigh_samples
        held, self.weights = weigh(problem.partition)  # heaviest last: equal weights lie together
        self._dtype = torch.float64
        self._inputs, self.targets = self._cast(held)
        try:
            self.value(np.asarray(problem.initial_params, np.float64))
        except RuntimeError:  # buffers or frozen parameters that are float32
            self._dtype = torch.float32
            self._inputs, self.targets = self._cast(held)

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
        return self.value_and_gradient(params)[1]

    def value_and_gradient(self, params: Float64) -> tuple[float, Float64]:
        """Return f(x) and grad f(x) from one pass."""
        x, value, gradient = self._tensor(params).requires_grad_(), 0.0, np.zeros(self.problem.dimension)
        for share, batch in self._batches():
            level = self.problem.objective(x, *batch)
            (slope,) = torch.autograd.grad(level, x)  # a fifth faster than torch.func.grad
            value += share * float(level.detach())
            gradient += share * slope.double().numpy()
        return value, gradient

    def hessian_product(self, params: Float64, direction: Float64) -> Float64:
        """Return the Hessian of f at x times ``direction``."""
        x, towards, total = self._tensor(params), self._tensor(direction), np.zeros(self.problem.dimension)
        gradient = torch.func.grad(self.problem.objective)
        for share, batch in self._batches():
            along = torch.func.jvp(lambda at, batch=batch: gradient(at, *batch), (x,), (towards,))[1]
            total += share * along.detach().double().numpy()
        return total

    def squared_gradients(self, params: Float32 | Float64) -> Float64:
        """Return ||grad f(x)||^2 for many x at once: (runs, p) to (runs,)."""
        x = self._tensor(params)
        total = torch.zeros_like(x)
        gradients = torch.func.vmap(torch.func.grad(self.problem.objective), in_dims=(0, None, None))
        for share, batch in self._batches():
            total += share * gradients(x, *batch)
        return total.detach().double().square().sum(1).numpy()

    def sample_gradients(self, params: Float64, samples: Int64) -> Iterator[Float64]:
        """Yield the gradients at x of the held samples numbered 0.., in blocks (rows, p)."""
        x = self._tensor(params)
        per_sample = torch.func.vmap(torch.func.grad(self.problem.objective), in_dims=(None, 0, 0))
        rows = max(1, GRADIENT_BYTES // (8 * self.problem.dimension))
        for start in range(0, len(samples), rows):
            at = torch.from_numpy(samples[start : start + rows])
            block = per_sample(x, self._inputs[at].unsqueeze(1), self.targets[at].unsqueeze(1))
            yield block.detach().double().numpy()

    def client_gradient(self, params: Float64, client: int) -> Float64:
        """Return grad f_i(x)."""
        batch = self._cast(self.problem.partition.samples_of(client))
        x = self._tensor(params).clone().requires_grad_()
        (gradient,) = torch.autograd.grad(self.problem.objective(x, *batch), x)
        return gradient.double().numpy()  # type: ignore[no-any-return]

    def output_gradients(self, params: Float64, client: int | None = None) -> Iterator[Float64]:
        """Yield the gradients at x of the model's one output, of every held sample or a client's: blocks (rows, p)."""

        def output(x: Tensor, inputs: Tensor) -> Tensor:
            return self.problem.outputs(x, inputs).reshape(())

        own = self._inputs if client is None else self._cast(self.problem.partition.samples_of(client))[0]
        rows = max(1, GRADIENT_BYTES // (8 * self.problem.dimension))
        for inputs in torch.split(own.unsqueeze(1), rows):
            each = self._tensor(params).repeat(len(inputs), 1).requires_grad_()  # params of its own for every sample
            (gradients,) = torch.autograd.grad(torch.func.vmap(output)(each, inputs).sum(), each)
            yield gradients.double().numpy()

    def outputs(self, params: Float64) -> Float64:
        """Return the model's outputs on every held sample."""
        with torch.no_grad():
            return self.problem.outputs(self._tensor(params), self._inputs).double().numpy()

    def _batches(self) -> Iterator[tuple[float, tuple[Tensor, Tensor]]]:
        """Yield (share of the batch in f, batch); all samples of a batch weigh the same."""
        steps = np.flatnonzero(np.diff(self.weights)) + 1
        for start, stop in itertools.pairwise([0, *steps.tolist(), self.num_samples]):
            for first in range(start, stop, ROWS):
                rows = slice(first, min(first + ROWS, stop))
                yield (float(self.weights[first]) * (rows.stop - first), (self._inputs[rows], self.targets[rows]))

    def _tensor(self, values: AnyArray) -> Tensor:
        return torch.as_tensor(np.asarray(values)).to(self._dtype)

    def _cast(self, held: Int64) -> tuple[Tensor, Tensor]:
        chosen = (values[torch.from_numpy(held)] for values in (self.problem.inputs, self.problem.targets))
        inputs, targets = (each.to(self._dtype) if each.is_floating_point() else each for each in chosen)
        return inputs, targets


def weigh_samples(partition: Partition) -> tuple[Int64, Float64]:
    """Return the held samples and equal weights that sum to 1."""
    held = np.unique(partition.indices)
    return held, np.full(len(held), 1.0 / len(held)).round(15)


def weigh_clients(partition: Partition) -> tuple[Int64, Float64]:
    """Return the held samples and their weights, which ascend and sum to 1; clients weigh the same.

    >>> weigh_clients(Partition.from_lists([[0, 2], [1, 2, 3, 4]]))[1].tolist()
    [0.125, 0.125, 0.125, 0.25, 0.375]
    """
    sizes = partition.sizes()
    each = np.repeat(1.0 / (partition.num_clients * sizes), sizes)
    held = np.unique(partition.indices)
    weights = np.asarray(np.bincount(partition.indices, weights=each)[held].round(15), np.float64)
    order = np.argsort(weights, kind="stable")
    return held[order], weights[order]
