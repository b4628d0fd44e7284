"""Evaluation: the training loss of params over every sample a client holds, and accuracy where targets are labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from fedpaq.arrays import Float32
from fedpaq.errors import ConfigError
from fedpaq.problems.dense_network import DenseNetwork

if TYPE_CHECKING:
    from fedpaq.problems.problem import Problem

LabelKind = Literal["classes", "logit", "probability"]
THRESHOLD = {"logit": 0.0, "probability": 0.5}  # above it a single output says 1
ROWS = 8192  # samples per forward pass: large products, bounded memory
OUTPUTS = 2**26  # numbers of the model's outputs per forward pass: a language model has millions a sample


@dataclass(frozen=True)
class Evaluation:
    """Training loss of some params, and accuracy where targets are labels."""

    loss: float
    accuracy: float | None


def evaluate(problem: Problem, params: Any) -> Evaluation:
    """Return the evaluation of ``params`` (p,), by the module itself."""
    if not isinstance(params, Tensor):
        params = np.array(params, np.float32)  # its own copy: torch warns of arrays that cannot be written
    flat = torch.as_tensor(params, dtype=torch.float32, device=problem.inputs.device)
    if flat.shape != (problem.dimension,):
        raise ConfigError(
            f"params.shape={tuple(flat.shape)} does not fit the model; it has dimension={problem.dimension}"
        )
    return _evaluate(problem, flat[None], ROWS, lambda x: [problem.outputs(flat, x)])[0]


def evaluate_batch(problem: Problem, params: Float32) -> list[Evaluation]:
    """Return the evaluation of each row of ``params`` (runs, p); dense networks share the products."""
    network = problem.dense_network
    if network is None or len(params) == 1:
        return [problem.evaluate(row) for row in params]
    flat = torch.as_tensor(params, dtype=torch.float32, device=problem.inputs.device)
    if flat.is_cuda:
        return evaluate_at_once(problem, network, flat)
    rows = max(256, ROWS * 64 // (len(flat) * max(network.widths[1:])))
    cut = (slice(None), 0) if network.squeezed else ()
    return _evaluate(problem, flat, rows, lambda x: (each[cut] for each in network.outputs(flat, x.flatten(1))))


def _evaluate(
    problem: Problem, params: Tensor, rows: int, outputs_of: Callable[[Tensor], Iterable[Tensor]]
) -> list[Evaluation]:
    """Return the evaluation of each row of ``params``; ``outputs_of`` gives the outputs of all for some inputs."""
    kind = problem._label_kind
    totals, correct, counted = [0.0] * len(params), [0] * len(params), 0
    with torch.no_grad(), evaluating(problem.model):
        for x, y in problem._held(rows):
            counted += len(x)
            for run, outputs in enumerate(outputs_of(x)):
                totals[run] += float(problem.loss(outputs, y)) * len(x)
                correct[run] += 0 if kind is None else count_correct(outputs, y, kind)
    regular = 0.5 * problem.regularization * params.double().square().sum(1)
    return [
        Evaluation(total / counted + extra, None if kind is None else right / counted)
        for total, right, extra in zip(totals, correct, regular.tolist(), strict=True)
    ]


def evaluate_at_once(problem: Problem, network: DenseNetwork, params: Tensor) -> list[Evaluation]:
    """Return the same as ``evaluate_batch`` with nothing read back before the end: what a GPU waits for."""
    kind, counted = problem._label_kind, 0
    losses = torch.zeros(len(params), dtype=torch.float64, device=params.device)
    correct = torch.zeros_like(losses)
    with torch.no_grad():
        for x, y in problem._held(max(256, 2**28 // (len(params) * max(network.widths[1:])))):
            counted += len(x)
            x, y = network.data(x, y)
            outputs = network.outputs(params, x)
            losses += network.losses(outputs, y) * len(x)
            if kind == "classes":
                correct += (outputs.argmax(2) == y).sum(1)
            elif kind is not None:
                correct += ((outputs > THRESHOLD[kind]) == (y > 0.5)).sum((1, 2))
    regular = 0.5 * problem.regularization * params.double().square().sum(1)
    found = torch.stack([losses / counted + regular, correct / counted], 1).tolist()
    return [Evaluation(loss, None if kind is None else share) for loss, share in found]


def count_correct(outputs: Tensor, targets: Tensor, kind: LabelKind) -> int:
    """Count right predictions: the largest of several outputs, or on which side of its threshold a single one is."""
    if kind == "classes":
        return int((outputs.argmax(1) == targets).sum())
    return int(((outputs.reshape(-1) > THRESHOLD[kind]) == (targets.reshape(-1) > 0.5)).sum())


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
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
