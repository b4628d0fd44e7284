"""A module of your own: a small transformer that learns which token appears most often.

python examples/own_model.py [--total-steps 300]
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

import fedpaq

TOKENS, LENGTH = 6, 16


class MostFrequent(nn.Module):
    """One attention layer over embedded tokens, then a linear layer on the mean."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.read_out = nn.Linear(width, TOKENS)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map (batch, length) tokens to (batch, TOKENS) scores."""
        x = self.embed(tokens)
        weights = torch.softmax(self.query(x) @ self.key(x).transpose(-1, -2) / x.shape[-1] ** 0.5, dim=-1)
        return self.read_out((x + weights @ self.value(x)).mean(-2))


def main(total_steps: int) -> None:
    """Train with 100 clients and print loss, accuracy and bytes during training."""
    torch.manual_seed(0)
    tokens = torch.randint(0, TOKENS, (4000, LENGTH))
    labels = nn.functional.one_hot(tokens, TOKENS).sum(1).argmax(1)
    problem = fedpaq.Problem(
        model=MostFrequent(),
        loss=nn.functional.cross_entropy,
        inputs=tokens,
        targets=labels,
        partition=fedpaq.problems.iid(len(tokens), num_clients=100, seed=0),
    )
    config = fedpaq.FedPAQConfig(clients_per_round=20, local_steps=10, total_steps=total_steps, step_size=0.3)
    history = fedpaq.train(problem, config, quantizer=fedpaq.LowPrecision(levels=16), evaluate_every=5)
    for record in history.records:
        if record.loss is not None:
            print(
                f"round {record.round:3}  loss {record.loss:.3f}  accuracy {record.accuracy:.1%}  "
                f"{record.payload_bytes / 1e3:7.1f} kB"
            )
    print(f"{problem.dimension} parameters, executor {history.executor}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--total-steps", type=int, default=300)
    main(parser.parse_args().total_steps)
