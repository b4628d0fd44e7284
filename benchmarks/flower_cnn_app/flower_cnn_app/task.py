"""What is learnt: MNIST, 3,000 images split by a Dirichlet draw, by a network with BatchNorm and Dropout."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import nn

import fedpaq

SAMPLES, BATCH = 3000, 32


def make_net(seed: int) -> nn.Module:
    """Return the untrained network: p = 52,314 and 24 BatchNorm channels."""
    torch.manual_seed(seed)
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 5, stride=2, padding=2), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Dropout(0.25), nn.Linear(64, 10)),
    )


@lru_cache(maxsize=1)
def load_mnist() -> dict[str, torch.Tensor]:
    """Return MNIST from the folder that FEDPAQ_DATA names."""
    with np.load(Path(os.environ["FEDPAQ_DATA"]) / "mnist.npz") as found:
        images = {name: torch.from_numpy(found[name]).float().div(255)[:, None] for name in ("x_train", "x_test")}
        labels = {name: torch.from_numpy(found[name]).long() for name in ("y_train", "y_test")}
    return images | labels


@lru_cache(maxsize=8)
def load_share(client: int, num_clients: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the images and labels of one client."""
    data = load_mnist()
    chosen = np.random.default_rng(seed).permutation(len(data["y_train"]))[:SAMPLES]
    images, labels = data["x_train"][chosen], data["y_train"][chosen]
    own = fedpaq.problems.dirichlet(labels, num_clients=num_clients, alpha=0.5, seed=seed).samples_of(client)
    return images[own], labels[own]


def train(net: nn.Module, images: torch.Tensor, labels: torch.Tensor, lr: float, seed: int) -> float:
    """Take one epoch of Adam; return the mean loss."""
    torch.manual_seed(seed)
    optimizer, losses = torch.optim.Adam(net.parameters(), lr=lr), []
    net.train()
    for batch in torch.randperm(len(labels)).split(BATCH):
        if len(batch) > 1:  # BatchNorm needs two
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return float(np.mean(losses)) if losses else 0.0


def accuracy(net: nn.Module) -> float:
    """Return the share of the 10,000 test images that are named right."""
    data = load_mnist()
    net.eval()
    with torch.no_grad():
        right = [
            (net(images).argmax(1) == labels).sum().item()
            for images, labels in zip(data["x_test"].split(1000), data["y_test"].split(1000), strict=True)
        ]
    return sum(right) / len(data["y_test"])
