"""What must be equal before the GPU is timed: messages, sums, draws to the bit; training to 1e-5."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

import fedpaq
from fedpaq.clients import Batched, Sequential, Vectorised, local_work
from fedpaq.clients.graphs import Graphs
from fedpaq.hardware.devices import to_tensor
from fedpaq.kernels import cuda
from fedpaq.quantizers.low_precision import quantize_numpy
from fedpaq.randomness import minibatches

# (dimension, levels, bucket_size): one chunk and several, both level types, ragged and tiny buckets
SHAPES = [
    (1, 1, None),
    (785, 1, None),
    (5000, 10, None),
    (3001, 300, None),
    (92_027, 1, None),
    (92_027, 127, None),
    (200_001, 32767, None),
    (5000, 4, 128),
    (70_001, 4, 1000),
    (140_001, 2, 69_000),
]


def check_kernels(device: torch.device) -> dict[str, Any]:
    """Compare levels, norms and sums with the NumPy twin for the same keys."""
    kernels, rng = cuda.load("low_precision"), np.random.default_rng(0)
    seeds = np.array([0, 2**63 + 5, 77, 3], np.uint64)
    clients = np.array([0, 17, 2**32 - 1, 5], np.int64)
    first_job = to_tensor(np.array([0, 3, 4]), device)
    for dimension, levels, bucket_size in SHAPES:
        updates = rng.standard_normal((4, dimension)).astype(np.float32)
        updates *= np.array([1.0, 1e-20, 0.0, 1e10], np.float32)[:, None]  # a tiny, a zero, a large one
        placed = to_tensor(updates, device)
        batch = kernels.quantize(placed, to_tensor(seeds, device), 3, to_tensor(clients, device), levels, bucket_size)
        total = torch.zeros(2, dimension, dtype=torch.float64, device=device)
        kernels.add_levels(batch, first_job, total)
        plain = torch.zeros_like(total)
        kernels.add_updates(placed, first_job, plain)
        expected, raw = np.zeros((2, dimension)), np.zeros((2, dimension))
        for job in range(4):
            key = fedpaq.Key(seed=int(seeds[job]), round=3, client=int(clients[job]))
            message = quantize_numpy(updates[job], key, levels, bucket_size)
            require(batch.norms[job].cpu().numpy().view(np.uint32), message.norms.view(np.uint32), "norms")
            require(batch.signed_levels[job, :dimension].cpu().numpy(), message.signed_levels, "levels")
            require(int(batch.nonzeros[job].sum()), np.count_nonzero(message.signed_levels), "non-zeros")
            message.add_to(expected[job // 3])
            raw[job // 3] += updates[job]
        require(total.cpu().numpy(), expected, "sum of messages")
        require(plain.cpu().numpy(), raw, "sum of updates")
    return {"shapes equal to the bit": len(SHAPES)}


def require(here: Any, twin: Any, what: str) -> None:
    """Raise unless two arrays are equal."""
    if not np.array_equal(here, twin):
        bad = np.flatnonzero(np.ravel(np.asarray(here) != np.asarray(twin)))
        raise AssertionError(f"{what} differ from the twin in {bad.size} places, first {bad[:5].tolist()}")


def check_non_finite(device: torch.device) -> dict[str, Any]:
    """A run with a NaN or infinite update gets a NaN sum; other runs are untouched."""
    kernels = cuda.load("low_precision")
    updates = torch.ones(3, 1000, device=device)
    updates[0, 5], updates[1, 7] = float("nan"), float("inf")
    numbers = torch.arange(3, device=device)
    batch = kernels.quantize(updates, numbers, 0, numbers, 1, None)
    total = torch.zeros(2, 1000, dtype=torch.float64, device=device)
    kernels.add_levels(batch, torch.tensor([0, 2, 3], device=device), total)
    if not (total[0].isnan().all() and total[1].isfinite().all()):
        raise AssertionError("a non-finite update did not make its own run's sum NaN, and only that")
    return {"non-finite updates": "make their run NaN"}


def check_draws(device: torch.device) -> dict[str, Any]:
    """Compare the minibatches drawn on the device with the NumPy twin."""
    rng = np.random.default_rng(1)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(1, 50, 200))])
    indices = rng.permutation(offsets[-1])
    seeds, clients = np.array([0, 2**64 - 1, 9], np.uint64), np.array([0, 5, 199], np.int64)
    samples = torch.empty(3, 700, dtype=torch.int64, device=device)
    placed = [to_tensor(values, device) for values in (indices, offsets, seeds)]
    cuda.load("philox").draw_samples(*placed, 1, to_tensor(clients, device), samples)
    positions = minibatches(seeds, 1, clients, offsets[clients + 1] - offsets[clients], 700)
    require(samples.cpu().numpy(), indices[offsets[clients][:, None] + positions], "minibatches")
    return {"draws equal": samples.numel()}


def small_problems() -> dict[str, fedpaq.Problem]:
    """Return a logistic regression, a dense network and a convolutional one."""
    generator = torch.Generator().manual_seed(7)
    images = torch.randn(400, 1, 8, 8, generator=generator)
    labels = torch.randint(0, 5, (400,), generator=generator)
    images[:, 0, 0, 0] += labels
    shared: dict[str, Any] = {"partition": fedpaq.problems.iid(400, num_clients=20, seed=1)}
    torch.manual_seed(3)
    mlp = nn.Sequential(nn.Linear(64, 29), nn.ReLU(), nn.Linear(29, 13), nn.ReLU(), nn.Linear(13, 5))
    convnet = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(144, 5))
    cross_entropy = nn.functional.cross_entropy
    flat = images.flatten(1)
    return {
        "mnist-logistic": fedpaq.problems.load("mnist-logistic", num_clients=20, seed=0),
        "mlp": fedpaq.Problem(model=mlp, loss=cross_entropy, inputs=flat, targets=labels, **shared),
        "convnet": fedpaq.Problem(model=convnet, loss=cross_entropy, inputs=images, targets=labels, **shared),
    }


def check_training(device: torch.device) -> dict[str, Any]:
    """Train without quantization on both devices: params to 1e-5. With it: the losses, for information."""
    config = fedpaq.FedPAQConfig(clients_per_round=7, local_steps=4, total_steps=24, batch_size=5, step_size=0.05)
    found = {}
    for name, problem in small_problems().items():
        here = fedpaq.train(problem, config, device=str(device))
        there = fedpaq.train(problem, config, executor="sequential")
        error = float(np.abs(here.params - there.params).max() / np.abs(there.params).max())
        if error > 1e-5:
            raise AssertionError(f"{name}: params on {device} differ from the CPU's by {error:.2e}")
        quantizer = fedpaq.LowPrecision(levels=4)
        fast = fedpaq.train(problem, config, quantizer=quantizer, device=str(device))
        slow = fedpaq.train(problem, config, quantizer=quantizer, executor="sequential")
        found[name] = {
            "executor": here.executor,
            "relative error of params": error,
            "loss with s=4, here and on the CPU": [fast.final.loss, slow.final.loss],
            "payload bytes, here (estimated) and encoded": [fast.final.payload_bytes, slow.final.payload_bytes],
        }
    return found


def check_executors(device: torch.device) -> dict[str, Any]:
    """Compare one round's updates of every executor, captured and not, with the sequential one's."""
    config = fedpaq.FedPAQConfig(clients_per_round=7, local_steps=4, total_steps=24, batch_size=5, step_size=0.05)
    found = {}
    for name, problem in small_problems().items():
        placed = problem.to(device)
        participants = np.arange(14).reshape(2, 7)
        start = np.stack([problem.initial_params, problem.initial_params + np.float32(0.01)])
        (work,) = local_work(placed, [config, config], 2, start, participants)
        expected = Sequential().local_updates(placed, work)
        executors: list[Any] = [Vectorised(graphs=Graphs(capture=False)), Vectorised()]
        executors += [Batched(graphs=Graphs(capture=False)), Batched()] if placed.dense_network else []
        for executor in executors:
            for _ in range(3):  # the third call replays a graph
                error = float((executor.local_updates(placed, work) - expected).abs().max())
                if error > 1e-5:
                    raise AssertionError(f"{name}: {executor.name} differs from sequential by {error:.2e}")
        found[name] = len(executors)
    return {"executors equal to 1e-5": found}
