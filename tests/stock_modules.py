"""Small problems of PyTorch's own modules, as people use them."""

from __future__ import annotations

import torch
from torch import nn

import fedpaq


class Encoder(nn.Module):
    """A stock encoder over token ids; 0 is padding."""

    def __init__(self, dropout=0.0, masked=False):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=True)
        self.embedding, self.encoder, self.head = nn.Embedding(11, 8), nn.TransformerEncoder(layer, 1), nn.Linear(8, 3)
        self.masked = masked

    def forward(self, ids):
        mask = {"src_key_padding_mask": ids == 0} if self.masked else {}
        return self.head(self.encoder(self.embedding(ids), **mask).mean(1))


class Recurrent(nn.Module):
    """The last output of a stock LSTM."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.cell, self.head = nn.LSTM(4, 5, 2, batch_first=True, dropout=dropout), nn.Linear(5, 3)

    def forward(self, values):
        return self.head(self.cell(values)[0][:, -1])


class Tied(nn.Module):
    """Outputs by the embedding's own weights."""

    def __init__(self):
        super().__init__()
        self.embedding, self.hidden, self.head = nn.Embedding(11, 8), nn.Linear(8, 8), nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids):
        return self.head(torch.tanh(self.hidden(self.embedding(ids)))).mean(1)


class Keywords(nn.Module):
    """Takes whatever else it is given."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, values, **others):
        return self.layer(values) * others.get("scale", 2.0)


def convolution():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))


WEIGHTS = torch.tensor([1.0, 2.0, 0.5])
STOCK = {  # model, inputs, classes, loss
    "TransformerEncoder": (Encoder, "ids", 3, nn.functional.cross_entropy),
    "TransformerEncoder, dropout and mask": (lambda: Encoder(0.1, True), "ids", 3, nn.functional.cross_entropy),
    "LSTM": (Recurrent, "sequence", 3, nn.functional.cross_entropy),
    "LSTM, dropout": (lambda: Recurrent(0.3), "sequence", 3, nn.functional.cross_entropy),
    "BatchNorm2d": (convolution, "image", 3, nn.functional.cross_entropy),
    "Dropout": (
        lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3)), "vector", 3,
        nn.functional.cross_entropy,
    ),
    "Embedding, tied": (Tied, "ids", 11, nn.functional.cross_entropy),
    "keywords": (Keywords, "vector", 3, nn.functional.cross_entropy),
    "class weights": (
        lambda: nn.Linear(6, 3), "vector", 3, lambda o, t: nn.functional.cross_entropy(o, t, weight=WEIGHTS),
    ),
}  # fmt: skip


def stock_problem(name):
    model, kind, classes, loss = STOCK[name]
    generator = torch.Generator().manual_seed(7)
    ids = torch.randint(1, 11, (40, 6), generator=generator)
    ids[::2, 4:] = 0
    inputs = {
        "ids": ids,
        "sequence": torch.randn(40, 6, 4, generator=generator),
        "image": torch.randn(40, 3, 8, 8, generator=generator),
        "vector": torch.randn(40, 6, generator=generator),
    }[kind]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return fedpaq.Problem(
            model=model(), loss=loss, inputs=inputs, targets=torch.arange(40) % classes,
            partition=fedpaq.problems.iid(40, 5),
        )  # fmt: skip
