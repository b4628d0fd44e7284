"""A quantizer the package lacks: a random rotation, then one bit a coordinate.

After a randomised Hadamard rotation all coordinates are of like size, about ||x|| / sqrt(p). One bit each,
chosen at random between -m and +m with m the largest rotated coordinate, is unbiased, and the rotation is
undone by the receiver. Against s = 1 it sends more bits and adds far less noise.

    python examples/own_quantizer.py [--total-steps 100]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import fedpaq
from fedpaq.quantizers import RawMessage, check_quantizer
from fedpaq.randomness import Purpose, uniforms


def hadamard(vector: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the orthonormal Walsh-Hadamard transform of a vector whose length is a power of two."""
    out, half = vector.copy(), 1
    while half < len(out):
        pairs = out.reshape(-1, 2, half)
        out = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).reshape(-1)
        half *= 2
    return out / np.sqrt(len(out))


@dataclass(frozen=True)
class RotatedOneBit:
    """Random signs, Hadamard rotation, one random bit a coordinate, and back."""

    name: str = "rotated one-bit"

    def variance_bound(self, dimension: int) -> float:
        """E||Q(x) - x||^2 = P m^2 - ||x||^2 with P >= p the padded length and m <= ||x||."""
        return float(1 << (dimension - 1).bit_length()) - 1.0

    def quantize(self, update: Any, *, key: fedpaq.Key) -> RawMessage:
        """Return the estimate itself: this example measures noise, not bytes."""
        x = np.asarray(update, np.float64)
        padded = np.zeros(1 << (len(x) - 1).bit_length())
        padded[: len(x)] = x
        draws = uniforms(Purpose.DITHER, key, 2 * len(padded))
        signs = np.where(draws[: len(padded)] < 0.5, -1.0, 1.0)
        rotated = hadamard(padded * signs)
        top = np.abs(rotated).max(initial=0.0)
        bits = draws[len(padded) :] * 2 * top < rotated + top
        estimate = hadamard(np.where(bits, top, -top)) * signs if top else padded
        return RawMessage(estimate[: len(x)].astype(np.float32))

    def quantize_batch(self, updates: Any, keys: Sequence[fedpaq.Key]) -> list[RawMessage]:
        """Quantize one by one."""
        return [self.quantize(update, key=key) for update, key in zip(np.asarray(updates), keys, strict=True)]


def main(total_steps: int) -> None:
    """Check the quantizer, then train with it and with two of the package's own."""
    check_quantizer(RotatedOneBit(), trials=500)
    print("unbiased, variance within its bound")
    problem = fedpaq.problems.load("mnist-logistic")
    config = fedpaq.FedPAQConfig(clients_per_round=10, local_steps=5, total_steps=total_steps, step_size=0.5)
    for quantizer in (RotatedOneBit(), fedpaq.LowPrecision(levels=1), fedpaq.Identity()):
        history = fedpaq.train(problem, config, quantizer=quantizer)
        print(f"{history.quantizer:20} loss {history.final.loss:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--total-steps", type=int, default=100)
    main(parser.parse_args().total_steps)
