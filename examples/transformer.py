"""A byte-level transformer of stock modules, one client per file of Python's own library.

python examples/transformer.py [--total-steps 400] [--width 64] [--device cuda] [--precision bfloat16]

Clients take AdamW steps, whose state starts anew in every round. The result is in bits per byte of the text.
"""

import argparse
import math
import sysconfig
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import fedpaq

LENGTH, CLIENTS, WINDOWS = 32, 20, 50  # bytes of a window, files, windows of each


class ByteTransformer(nn.Module):
    """Predicts the next byte."""

    def __init__(self, width: int, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.positions = nn.Parameter(torch.randn(LENGTH, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers)
        self.head = nn.Linear(width, 256)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH))

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits (B, T, 256) of ids (B, T)."""
        return self.head(self.encoder(self.embedding(ids) + self.positions, mask=self.mask, is_causal=True))


def loss(logits: Tensor, following: Tensor) -> Tensor:
    """Return the mean cross-entropy of every position."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), following.flatten())


def read_files() -> tuple[np.ndarray, np.ndarray]:
    """Return windows of bytes and the bytes that follow, the windows of each file after another."""
    needed, texts = LENGTH * WINDOWS + 1, []
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text = np.frombuffer(path.read_bytes()[:needed], np.uint8).astype(np.int64)
        if len(text) == needed and len(texts) < CLIENTS:
            texts.append(text)
    both = np.stack(texts)
    return both[:, :-1].reshape(-1, LENGTH), both[:, 1:].reshape(-1, LENGTH)


def main(total_steps: int, width: int, device: str, precision: str) -> None:
    """Train as float32 and with the rotated quantizer, and print what it took."""
    inputs, targets = read_files()
    files = fedpaq.problems.Partition.from_lists(np.split(np.arange(len(inputs)), len(inputs) // WINDOWS))
    torch.manual_seed(0)
    problem = fedpaq.Problem(
        model=ByteTransformer(width), loss=loss, inputs=inputs, targets=targets, partition=files, name="bytes"
    )
    config = fedpaq.FedPAQConfig(
        clients_per_round=8, local_steps=5, total_steps=total_steps, batch_size=8, optimizer="adamw:0.01",
        step_size=fedpaq.WarmupCosine(peak=2e-3, rounds=total_steps // 5, warmup=2), precision=precision,
    )  # fmt: skip
    print(f"{problem.dimension:,} parameters, {problem.num_clients} clients")
    for text in ("none", "rotated:0.1"):
        quantizer = fedpaq.quantizers.parse(text)
        history = fedpaq.train(problem, config, quantizer=quantizer, evaluate_every=0, device=device)
        sent, bits = history.final.payload_bytes / (8 * history.final.round), history.final.loss / math.log(2)
        print(f"{text:12} {sent:9,.0f} bytes per upload  {bits:.2f} bits per byte  executor {history.executor}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--total-steps", type=int, default=400)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="float32")
    options = parser.parse_args()
    main(options.total_steps, options.width, options.device, options.precision)
