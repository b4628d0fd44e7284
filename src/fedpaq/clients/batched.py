"""Batched: recognised dense networks by batched matrix products, without autograd. For GPUs.

All clients of a part take each local step together. With A_0 the minibatch, Z_l = A_{l-1} W_l^T + b_l,
A_l = max(Z_l, 0) and D_L = -eta dloss/dZ_L, the step is

    D_{l-1} = (D_l W_l) * [A_{l-1} > 0]      W_l <- (1 - eta lambda) W_l + D_l^T A_{l-1}

so the weights of every client are read twice and written once.
"""

from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from fedpaq.clients.graphs import Graphs
from fedpaq.clients.steps import require_plain
from fedpaq.clients.work import LocalWork
from fedpaq.errors import ConfigError
from fedpaq.problems import Problem
from fedpaq.problems.dense_network import CROSS_ENTROPY, LOGISTIC, DenseNetwork

ALIGNMENT = 32  # floats: rows of params start at 128-byte lines, which unaligned products would pay for


@dataclass(frozen=True)
class Batched:
    """For models that ``problems.dense_network`` recognises; small parts replay a CUDA graph."""

    name: str = "batched"
    graphs: Graphs = field(default_factory=Graphs, repr=False, compare=False)

    def local_updates(self, problem: Problem, work: LocalWork) -> Tensor:
        """Return x_{k,tau}^(i) - x_k for every job: (jobs, p), rows spaced for aligned access."""
        if problem.dense_network is None:
            raise ConfigError("executor='batched' needs a dense ReLU network; choose 'auto'")
        require_plain(self.name, work)
        step = partial(descend, problem, problem.dense_network)
        return self.graphs.run((problem,), step, *work.tensors(problem.inputs.device))


def descend(
    problem: Problem, network: DenseNetwork, received: Tensor, run_of: Tensor, step_sizes: Tensor, samples: Tensor
) -> Tensor:
    """Return the updates (jobs, p) of jobs that start from received[run_of] and see samples (jobs, tau, B)."""
    dimension = received.shape[1]
    padded = torch.nn.functional.pad(received, (0, -dimension % ALIGNMENT))
    params = padded.index_select(0, run_of)  # (jobs, p padded)
    rates = step_sizes[run_of][:, None, None]  # (jobs, 1, 1)
    layers, (inputs, targets) = network.layers(params[:, :dimension]), problem.dense_data
    for step in range(samples.shape[1]):
        chosen = samples[:, step]  # (jobs, B)
        activations = forward(layers, inputs[chosen])
        slope = output_slope(network.loss, activations.pop(), targets[chosen])
        deltas = backward(layers, activations, slope.mul_(-rates))
        if problem.regularization:
            params.mul_(1 - problem.regularization * rates[:, 0])
        for (weight, bias), below, delta in zip(layers, activations, deltas, strict=True):
            weight.baddbmm_(delta.transpose(1, 2), below)
            bias.add_(delta.sum(1))
    params.sub_(padded if len(padded) == 1 else padded.index_select(0, run_of))
    return params[:, :dimension]


def forward(layers: list[tuple[Tensor, Tensor]], inputs: Tensor) -> list[Tensor]:
    """Return A_0 .. A_{L-1} and the outputs Z_L, each (jobs, B, width)."""
    activations = [inputs]
    for number, (weight, bias) in enumerate(layers, start=1):
        outputs = torch.baddbmm(bias[:, None, :], activations[-1], weight.transpose(1, 2))
        activations.append(outputs.relu_() if number < len(layers) else outputs)
    return activations


def backward(layers: list[tuple[Tensor, Tensor]], activations: list[Tensor], delta: Tensor) -> list[Tensor]:
    """Return D_1 .. D_L from D_L."""
    deltas = [delta]
    for (weight, _), below in zip(layers[:0:-1], activations[:0:-1], strict=True):
        delta = torch.ops.aten.threshold_backward(torch.bmm(delta, weight), below, 0)
        deltas.append(delta)
    return deltas[::-1]


def output_slope(loss: str, outputs: Tensor, targets: Tensor) -> Tensor:
    """Return dloss/doutputs (jobs, B, width); the loss is a mean over B (and, except labels, width)."""
    if loss == CROSS_ENTROPY:
        slope = outputs.softmax(-1)
        slope.scatter_add_(2, targets[:, :, None], slope.new_full((), -1.0).expand(*targets.shape, 1))
        return slope.div_(targets.shape[1])
    if loss == LOGISTIC:
        return (outputs.sigmoid() - targets).div_(outputs[0].numel())
    return (outputs - targets).mul_(2.0 / outputs[0].numel())
