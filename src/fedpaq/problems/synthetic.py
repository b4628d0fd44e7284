"""Synthetic problems: one whose constants are known exactly, one that scales to millions of clients."""

import numpy as np
import torch
from torch import Tensor, nn

from fedpaq.arrays import Float64
from fedpaq.config import require_int, require_positive
from fedpaq.errors import ConfigError
from fedpaq.problems.partitions import iid, shared
from fedpaq.problems.problem import ExactConstants, Problem
from fedpaq.problems.relu_network import zero_linear
from fedpaq.randomness import Key, Purpose, normals, uniforms


class Quadratic(nn.Module):
    """f_j(x) = 1/2 sum_k h_k (x_k - z_jk)^2: maps samples z_j (B, p) to losses (B,)."""

    def __init__(self, curvature: Tensor) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(len(curvature), dtype=torch.float32))
        # Never trained: a constant of the module, so that x is its only state.
        self.curvature = nn.Parameter(curvature, requires_grad=False)

    def forward(self, samples: Tensor) -> Tensor:
        """Return each sample's loss."""
        return 0.5 * (self.curvature * (self.x - samples).square()).sum(-1)


def mean_output(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean of outputs that are losses already; targets play no part."""
    return outputs.mean()


def synthetic_quadratic(
    *,
    num_clients: int = 50,
    seed: int = 0,
    samples_per_client: int = 10,
    dimension: int = 20,
    strong_convexity: float = 1.0,
    smoothness: float = 4.0,
    noise: float = 1.0,
    regularization: float = 0.0,
) -> Problem:
    """Return a strongly convex quadratic with L, mu, sigma^2, x* and f(x*) known exactly.

    Every client holds the same ``samples_per_client`` samples z_j, normal with deviation ``noise``
    around a random centre, so all f_i = f as the paper assumes and a single-sample gradient has
    variance sigma^2 = mean_j ||h (z_j - mean z)||^2 at every x. Curvatures h run evenly from
    ``strong_convexity`` [mu] to ``smoothness`` [L].

    >>> synthetic_quadratic(num_clients=3).known.smoothness
    4.0
    """
    require_int("num_clients", num_clients, 1, 2**32)
    require_int("samples_per_client", samples_per_client, 1)
    require_int("dimension", dimension, 1)
    require_positive("strong_convexity", strong_convexity)
    require_positive("smoothness", smoothness)
    require_positive("noise", noise, zero_allowed=True)
    require_positive("regularization", regularization, zero_allowed=True)
    if smoothness < strong_convexity:
        raise ConfigError(f"smoothness={smoothness} is below strong_convexity={strong_convexity}; choose L >= mu")
    curvature = np.linspace(smoothness, strong_convexity, dimension).astype(np.float32)  # (p,)
    centre = normals(Purpose.DATA, Key(seed=seed), dimension)  # (p,)
    spread = normals(Purpose.DATA, Key(seed=seed, round=1), samples_per_client * dimension)
    samples = (centre + noise * spread.reshape(-1, dimension)).astype(np.float32)  # (m, p)
    return Problem(
        model=Quadratic(torch.from_numpy(curvature)),
        loss=mean_output,
        inputs=samples,
        targets=np.full(samples_per_client, -1.0, np.float32),  # -1: neither label, so no accuracy
        partition=shared(np.arange(samples_per_client), num_clients),
        regularization=regularization,
        name="synthetic-quadratic",
        known=_constants(curvature.astype(np.float64), samples.astype(np.float64), regularization),
    )


def synthetic_logistic(
    *,
    num_clients: int = 50,
    seed: int = 0,
    samples_per_client: int = 1,
    dimension: int = 10,
    regularization: float | None = None,
) -> Problem:
    """Return a small logistic regression that stays cheap for millions of clients.

    Inputs are standard normal with ``dimension`` - 1 features (the last parameter is the bias);
    labels are drawn from a random true model of norm 2. ``regularization`` defaults to one over the
    number of samples.
    """
    require_int("num_clients", num_clients, 1, 2**32)
    require_int("samples_per_client", samples_per_client, 1)
    require_int("dimension", dimension, 2)
    num_samples, features = num_clients * samples_per_client, dimension - 1
    truth = normals(Purpose.DATA, Key(seed=seed), dimension)
    truth *= 2.0 / np.linalg.norm(truth)
    inputs = normals(Purpose.DATA, Key(seed=seed, round=1), num_samples * features).astype(np.float32)
    inputs = inputs.reshape(num_samples, features)
    chance = 1.0 / (1.0 + np.exp(-(inputs @ truth[:-1] + truth[-1])))
    labels = uniforms(Purpose.DATA, Key(seed=seed, round=2), num_samples) < chance
    return Problem(
        model=zero_linear(features, 1),
        loss=nn.functional.binary_cross_entropy_with_logits,
        inputs=inputs,
        targets=labels.astype(np.float32)[:, None],
        partition=iid(num_samples, num_clients, seed=seed),
        regularization=1.0 / num_samples if regularization is None else regularization,
        name="synthetic-logistic",
    )


def _constants(curvature: Float64, samples: Float64, regularization: float) -> ExactConstants:
    mean = samples.mean(0)  # (p,)
    optimum = curvature * mean / (curvature + regularization)
    losses = 0.5 * (curvature * (optimum - samples) ** 2).sum(1)  # (m,)
    return ExactConstants(
        smoothness=float(curvature.max()) + regularization,
        strong_convexity=float(curvature.min()) + regularization,
        gradient_variance=float(((curvature * (samples - mean)) ** 2).sum(1).mean()),
        optimum=optimum,
        minimum=float(losses.mean() + 0.5 * regularization * (optimum**2).sum()),
    )
