"""What is learnt: a network that knows digits 0 and 8 learns, by adapters alone, to read them in negative."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor, nn

import fedpaq
from fedpaq.problems.relu_network import relu_network

HELD_OUT = 2000  # samples that no client has


class LoRA(nn.Module):
    """A frozen Linear layer W plus B A of low rank; A and B are trained, and only they travel."""

    def __init__(self, layer: nn.Linear, rank: int, seed: int) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        generator = torch.Generator().manual_seed(seed)
        down = torch.randn(rank, layer.in_features, generator=generator) / layer.in_features**0.5
        self.down = nn.Parameter(down)
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank))  # so that training starts from W

    def forward(self, inputs: Tensor) -> Tensor:
        """Return W x + B A x."""
        return self.layer(inputs) + inputs @ self.down.T @ self.up.T


def load_model(rank: int) -> nn.Module:
    """Return the pre-trained network with adapters; the same for everyone, as a downloaded checkpoint would be."""
    model = relu_network([784, 64, 64, 1])
    model.load_state_dict(pretrained())
    for number, layer in enumerate(model):
        if isinstance(layer, nn.Linear):
            model[number] = LoRA(layer, rank, seed=number)
    return model


def adapter(model: nn.Module) -> dict[str, Tensor]:
    """Return what is trained, by name: all that a client receives and sends."""
    return {name: value.detach() for name, value in model.named_parameters() if value.requires_grad}


@lru_cache
def pretrained() -> dict[str, Tensor]:
    """Train the network on positives: a stand-in for the checkpoint of a foundation model."""
    inputs, labels = images("positive", slice(0, HELD_OUT))
    model = relu_network([784, 64, 64, 1])
    fit(model, inputs, labels, steps=150, batch_size=50, learning_rate=0.002, seed=0)
    return model.state_dict()


@lru_cache
def bundled() -> fedpaq.Problem:
    """Return the images that come with fedpaq."""
    return fedpaq.problems.load("mnist-logistic", num_clients=1)


def images(kind: str, rows: slice) -> tuple[Tensor, Tensor]:
    """Return some of the bundled images, as they are or in negative, and whether each is an 8."""
    inputs, labels = bundled().inputs[rows], bundled().targets[rows]
    return (inputs if kind == "positive" else 1 - inputs), labels


def share(client: int, num_clients: int) -> tuple[Tensor, Tensor]:
    """Return one client's images, all in negative; the first ones are held out."""
    return images("negative", slice(HELD_OUT + client, None, num_clients))


def fit(
    model: nn.Module, inputs: Tensor, labels: Tensor, *, steps: int, batch_size: int, learning_rate: float, seed: int
) -> None:
    """Take steps of AdamW on what the model has to train, on minibatches drawn by ``seed``."""
    optimizer = torch.optim.AdamW([value for value in model.parameters() if value.requires_grad], lr=learning_rate)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        rows = torch.randint(len(inputs), (batch_size,), generator=generator)
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(inputs[rows]), labels[rows]).backward()
        optimizer.step()


@torch.no_grad()
def accuracy(model: nn.Module) -> float:
    """Return the share of held-out negatives that the model reads right."""
    inputs, labels = images("negative", slice(0, HELD_OUT))
    return float(((model(inputs) > 0) == (labels > 0.5)).float().mean())
