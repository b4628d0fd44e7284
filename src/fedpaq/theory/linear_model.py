"""LinearModel: where a model's one output is affine in its params, L, mu and sigma^2 have formulas.

With z_j = a_j . x + b_j the output for sample j and weights w_j (``FullLoss``), the loss is
f(x) = sum_j w_j l(z_j, y_j) + lambda/2 ||x||^2, and with A = sum_j w_j a_j a_j^T

    L      <= max l'' lambda_max(A) + lambda
    mu     >= min l'' lambda_min(A) + lambda          (min l'' >= 0: convex)
    sigma^2 <= (max |l'|)^2 sum_j w_j ||a_j||^2         at every x
    f*     >= sum_j w_j min_z l(z, y_j)

Logistic regression is one: l'' in (0, 1/4], |l'| < 1.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
import torch
from torch import Tensor

from fedpaq.arrays import Float64
from fedpaq.theory.full_loss import FullLoss

LARGEST_OUTPUT = 60.0  # where exp(-z) is far below double rounding
GRID = 24_001  # outputs tried, 0.005 apart: the maximum of a curvature of scale 1 is missed by 1e-5 at most
MOST_LABELS = 16
MOST_PARAMS = 8192  # A is (p, p)


@dataclass(frozen=True)
class LinearModel:
    """Ranges of the loss's derivatives, and the spectrum of A."""

    curvature: tuple[float, float]  # least and largest l''
    slope: float  # largest |l'|; infinite where it grows without end
    floor: float  # sum_j w_j min_z l(z, y_j)
    spectrum: tuple[float, float]  # least and largest eigenvalue of A
    mean_square: float  # sum_j w_j ||a_j||^2


def linear_model(full_loss: FullLoss) -> LinearModel | None:
    """Return the problem as a linear model, or None if it is not one (or too large)."""
    problem = full_loss.problem
    labels, label_of = np.unique(full_loss.targets.numpy().reshape(full_loss.num_samples, -1), return_inverse=True)
    if problem.dimension > MOST_PARAMS or label_of.size != full_loss.num_samples or not _is_affine(full_loss):
        return None
    if len(labels) <= MOST_LABELS:
        firsts = [int(np.flatnonzero(label_of.ravel() == label)[0]) for label in range(len(labels))]
        lows, highs, slopes, floors = zip(*(_ranges(full_loss, sample) for sample in firsts), strict=True)
        shares = np.bincount(label_of.ravel(), weights=full_loss.weights)
        floor = float(sum(share * low for share, low in zip(shares, floors, strict=True)))
        curvature, slope = (min(lows), max(highs)), max(slopes)
    else:
        parabola = _parabola(full_loss)
        if parabola is None:
            return None
        (curvature, floor), slope = parabola, math.inf
    gram = _gram(full_loss)
    eigenvalues: Any = scipy.linalg.eigvalsh(gram)
    spectrum = max(0.0, float(eigenvalues[0])), float(eigenvalues[-1])
    return LinearModel(curvature, slope, floor, spectrum, mean_square=float(np.trace(gram)))


def client_smoothness(full_loss: FullLoss, linear: LinearModel) -> float:
    """Return the largest L_i: the smoothness of every client's f_i."""
    largest = max(abs(curvature) for curvature in linear.curvature)
    tops = []
    for client in range(full_loss.problem.num_clients):
        rows = np.concatenate(list(full_loss.output_gradients(np.zeros(full_loss.problem.dimension), client)))
        tops.append(float(np.linalg.norm(rows, 2)) ** 2 / len(rows))
    return largest * max(tops) + full_loss.problem.regularization


def _parabola(full_loss: FullLoss) -> tuple[tuple[float, float], float] | None:
    """Return l'' and the floor where l is the same parabola for every target, as in least squares; else None.

    Targets may be all different. l'' is looked at for every sample, at outputs from -60 to 60.
    """
    loss = _loss_of_output(full_loss)

    def over_samples(function: Any, z: float) -> Tensor:
        outputs = torch.full((full_loss.num_samples,), z, dtype=torch.float64)
        return torch.func.vmap(function)(outputs, full_loss.targets)  # type: ignore[no-any-return]

    second = torch.func.grad(torch.func.grad(loss))
    curvatures = torch.cat([over_samples(second, z) for z in np.linspace(-LARGEST_OUTPUT, LARGEST_OUTPUT, 9)])
    low, high = float(curvatures.min()), float(curvatures.max())
    if low <= 0 or high - low > 1e-9 * high:
        return None
    lowest = over_samples(loss, 0.0) - over_samples(torch.func.grad(loss), 0.0).square() / (2 * high)
    return (low, high), float(full_loss.weights @ lowest.double().numpy())


def _loss_of_output(full_loss: FullLoss) -> Callable[[Tensor, Tensor], Tensor]:
    """Return l, a function of one sample's output and target."""
    shape = torch.as_tensor(full_loss.outputs(np.zeros(full_loss.problem.dimension))).shape[1:]
    return lambda z, target: full_loss.problem.loss(z.reshape(1, *shape), target.unsqueeze(0))


def _is_affine(full_loss: FullLoss) -> bool:
    """Try the model's outputs on the middle and the ends of a random segment."""
    generator = np.random.default_rng(0)
    one, two = generator.normal(size=(2, full_loss.problem.dimension))
    outputs = [full_loss.outputs(x) for x in (one, two, 0.5 * (one + two))]
    if outputs[0].size != full_loss.num_samples:
        return False
    scale = max(1.0, float(np.abs(outputs[0]).max()), float(np.abs(outputs[1]).max()))
    middle = 0.5 * (outputs[0] + outputs[1])
    return bool(np.allclose(outputs[2], middle, atol=1e-9 * scale, rtol=0))


def _ranges(full_loss: FullLoss, sample: int) -> tuple[float, float, float, float]:
    """Return least and largest l'', largest |l'| and least l over all outputs, for the target of one sample."""
    loss, target = _loss_of_output(full_loss), full_loss.targets[sample]
    z = torch.linspace(-LARGEST_OUTPUT, LARGEST_OUTPUT, GRID, dtype=torch.float64).requires_grad_()
    values = torch.func.vmap(loss, in_dims=(0, None))(z, target)
    nothing = 0.0 * z  # keeps a slope that does not depend on z differentiable
    # torch.func.grad would import torch._dynamo, for a second
    (slopes,) = torch.autograd.grad((values + nothing).sum(), z, create_graph=True)
    (curvatures,) = torch.autograd.grad((slopes + nothing).sum(), z)
    values, slopes = values.detach(), slopes.detach()
    steepest = int(slopes.abs().argmax())
    grows = steepest in (0, GRID - 1) and abs(float(curvatures[steepest])) > 1e-9
    slope = math.inf if grows else float(slopes.abs().max())
    return float(curvatures.min()), float(curvatures.max()), slope, float(values.min())


def _gram(full_loss: FullLoss) -> Float64:
    """Return A = sum_j w_j a_j a_j^T."""
    problem = full_loss.problem
    gram = np.zeros((problem.dimension, problem.dimension))
    start = 0
    for rows in full_loss.output_gradients(np.zeros(problem.dimension)):
        weights = full_loss.weights[start : start + len(rows)]
        gram += (rows * weights[:, None]).T @ rows
        start += len(rows)
    return gram
