"""Networks: a ResNet for small images and a transformer for bytes, of stock modules."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """Two 3x3 convolutions with GroupNorm, and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm = nn.GroupNorm(2, outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm_again = nn.GroupNorm(2, outputs)
        straight = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if straight else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return relu(shortcut(x) + branch(x))."""
        branch = self.norm_again(self.second(torch.relu(self.norm(self.first(x)))))
        return torch.relu(branch + self.shortcut(x))


def resnet18(classes: int = 10, width: int = 64) -> nn.Module:
    """Return the ResNet-18 for images of 32 x 32: 11,172,170 parameters."""
    widths = [(1, 1, 1), (1, 1, 1), (1, 2, 2), (2, 2, 1), (2, 4, 2), (4, 4, 1), (4, 8, 2), (8, 8, 1)]
    blocks = [Block(width * inputs, width * outputs, stride) for inputs, outputs, stride in widths]
    stem = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.GroupNorm(2, width), nn.ReLU()]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, classes))


class ByteTransformer(nn.Module):
    """A stock encoder with a causal mask that predicts the next byte; the defaults have 4,902,656 parameters."""

    def __init__(self, width: int = 256, layers: int = 6, length: int = 128, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.positions = nn.Parameter(torch.randn(length, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers)
        self.head = nn.Linear(width, 256)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits (B, T, 256) of ids (B, T)."""
        hidden = self.encoder(self.embedding(ids) + self.positions, mask=self.mask, is_causal=True)
        logits: Tensor = self.head(hidden)
        return logits


def next_byte_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy of every position, in nats."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
