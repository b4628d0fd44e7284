"""A real network: ResNet-18 with GroupNorm on CIFAR-10, what it reaches and what its uploads take.

    python benchmarks/resnet.py [--rounds 150] [--seeds 2] [--device cuda]

n = 50, r = 10, tau = 5, B = 20. Each quantizer has its own step size (``STEP_SIZES``), set by hand; none of them was
tuned on a grid. 0.05 is more than float32 needs: ``LowPrecision`` with a tenth of it ended lower.
Loss is the training loss after the last round, accuracy that of the test images.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import fedpaq
from measurement import write

DATA = Path(os.environ.get("FEDPAQ_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
STEP_SIZES = {"none": 0.05, "low-precision:1": 0.005, "rotated:payload_bytes=3400": 0.05}


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


def resnet18(classes: int = 10) -> nn.Module:
    """Return the ResNet-18 for images of 32 x 32: 11,172,170 parameters."""
    widths = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1)]
    widths += [(128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1)]
    blocks = [Block(*width) for width in widths]
    stem = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.GroupNorm(2, 64), nn.ReLU()]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))


def images(values: Any) -> Tensor:
    """Return bytes (N, 32, 32, 3) or (N, 3, 32, 32) as centred floats (N, 3, 32, 32)."""
    pixels = torch.from_numpy(np.ascontiguousarray(values)).float() / 127.5 - 1
    return pixels if pixels.shape[1] == 3 else pixels.permute(0, 3, 1, 2).contiguous()


def make_problem() -> tuple[fedpaq.Problem, Tensor, Tensor]:
    """Return the problem, and the test images and labels."""
    with np.load(DATA / "cifar10_10k.npz") as stored:
        arrays = {name: stored[name] for name in stored.files}
    torch.manual_seed(0)
    labels = torch.from_numpy(arrays["y_train"].astype(np.int64).reshape(-1))
    problem = fedpaq.Problem(
        model=resnet18(),
        loss=nn.functional.cross_entropy,
        inputs=images(arrays["x_train"]),
        targets=labels,
        partition=fedpaq.problems.iid(len(labels), num_clients=50, seed=0),
        name="resnet18-gn",
    )
    return problem, images(arrays["x_test"]), torch.from_numpy(arrays["y_test"].astype(np.int64).reshape(-1))


def accuracy(params: Any, inputs: Tensor, labels: Tensor, device: str) -> float:
    """Return the share of test images that the model gets right."""
    model = resnet18().to(device)
    nn.utils.vector_to_parameters(torch.from_numpy(params).to(device), model.parameters())
    with torch.no_grad():
        found = torch.cat([model(part.to(device)).argmax(1).cpu() for part in inputs.split(500)])
    return float((found == labels).float().mean())


def main() -> None:
    """Train with each quantizer and seed; write the results after each run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quantizer", action="append", help="repeatable; default: all three")
    parser.add_argument("--step-size", type=float, help="instead of the tuned one")
    options = parser.parse_args()
    problem, inputs, labels = make_problem()
    assert problem.dimension == 11_172_170
    runs = []
    for seed in range(options.seeds):
        for text in options.quantizer or STEP_SIZES:
            step_size = options.step_size or STEP_SIZES.get(text, 0.05)
            config = fedpaq.FedPAQConfig(
                clients_per_round=10, local_steps=5, total_steps=5 * options.rounds, batch_size=20,
                step_size=step_size, seed=seed,
            )  # fmt: skip
            quantizer, start = fedpaq.quantizers.parse(text), time.perf_counter()
            (history,) = fedpaq.sweep(problem, [config], quantizer=quantizer, device=options.device, evaluate_every=0)
            seconds, final = time.perf_counter() - start, history.final
            rounds = max(1, final.round)
            runs.append(
                {
                    "quantizer": text, "seed": seed, "step_size": step_size, "rounds": final.round,
                    "loss": final.loss, "bytes_an_upload": final.payload_bytes / (10 * rounds),
                    "test_accuracy": accuracy(history.params, inputs, labels, options.device),
                    "seconds_per_round": seconds / rounds, "executor": history.executor,
                    "diverged": history.diverged,
                }
            )  # fmt: skip
            print(runs[-1], flush=True)
            write("resnet", {"rounds": options.rounds, "runs": runs})


if __name__ == "__main__":
    main()
