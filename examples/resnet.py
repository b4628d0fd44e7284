"""A ResNet with GroupNorm: bytes per upload and loss, as float32 and with two quantizers.

python examples/resnet.py [--total-steps 200] [--width 8] [--device cuda]

The images are the bundled digits, so that nothing has to be downloaded; put your own in their place.
"""

import argparse

import torch
from torch import Tensor, nn

import fedpaq


class Block(nn.Module):
    """Two convolutions with GroupNorm, and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm = nn.GroupNorm(2, outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm_again = nn.GroupNorm(2, outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return relu(shortcut(x) + branch(x))."""
        branch = self.norm_again(self.second(torch.relu(self.norm(self.first(x)))))
        return torch.relu(branch + self.shortcut(x))


def resnet(width: int) -> nn.Module:
    """Return three blocks and a logit."""
    blocks = [Block(1, width, 1), Block(width, 2 * width, 2), Block(2 * width, 4 * width, 2)]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 1))


def main(total_steps: int, width: int, device: str) -> None:
    """Train with each quantizer and print what it sent."""
    digits = fedpaq.problems.load("mnist-logistic", num_clients=50)
    torch.manual_seed(0)
    problem = fedpaq.Problem(
        model=resnet(width), loss=nn.functional.binary_cross_entropy_with_logits,
        inputs=digits.inputs[:2000].view(-1, 1, 28, 28), targets=digits.targets[:2000],
        partition=fedpaq.problems.iid(2000, num_clients=50), name="resnet",
    )  # fmt: skip
    schedule = fedpaq.WarmupCosine(peak=0.1, rounds=total_steps // 5, warmup=min(4, total_steps // 5 - 1))
    config = fedpaq.FedPAQConfig(
        clients_per_round=10, local_steps=5, total_steps=total_steps, batch_size=20, step_size=schedule
    )
    print(f"{problem.dimension:,} parameters")
    for text in ("none", "rotated:0.1", "low-precision:64"):
        quantizer = fedpaq.quantizers.parse(text)
        history = fedpaq.train(problem, config, quantizer=quantizer, evaluate_every=0, device=device)
        sent = history.final.payload_bytes / (10 * history.final.round)
        print(f"{text:17} {sent:9,.0f} bytes per upload  loss {history.final.loss:.3f}  executor {history.executor}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--total-steps", type=int, default=200)
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    main(options.total_steps, options.width, options.device)
