"""The scales of rotated blocks on the GPU; twins: ``round_scales`` and ``largest_estimate`` of
``fedpaq.quantizers.rotated.message``, equal to the bit."""

from __future__ import annotations

import torch
from torch import Tensor

from fedpaq.kernels.cuda.rotation import draw_words
from fedpaq.kernels.cuda.rounding import RoundedBlocks

SCALE = 14  # Purpose
LARGEST = torch.finfo(torch.float32).max


def find_scales(
    rounded: RoundedBlocks, energies: Tensor, factors: Tensor, mantissa_bits: Tensor,
    seeds: Tensor, round: int, clients: Tensor,
) -> Tensor:  # fmt: skip
    """Return the scales (jobs, blocks) float64: ||x_b||^2 / <W x_b, level_b>, rounded at random; 0 for none.

    ``energies`` (float64) and ``factors`` (float32) are (jobs, blocks), ``mantissa_bits`` (int64) is (jobs,).
    """
    jobs, blocks = energies.shape
    drawn = torch.empty(jobs, -(-blocks // 256) * 256, dtype=torch.int32, device=energies.device)
    draw_words(seeds, round, clients, SCALE, drawn)
    words = drawn[:, :blocks].long() & 0xFFFFFFFF
    sent = rounded.counts > 0
    exact = energies * factors.double() / torch.where(sent, rounded.products, 1.0)
    bits = torch.where(sent, exact, 0.0).view(torch.int64)
    dropped = (52 - mantissa_bits)[:, None]
    one = torch.ones_like(dropped)
    rest = (bits & ((one << dropped) - 1)) >> (dropped - 32)
    scales = (((bits >> dropped) + (words < rest)) << dropped).view(torch.float64)
    return torch.where(sent, scales, 0.0)


def are_usable(rounded: RoundedBlocks, scales: Tensor, growth: float) -> Tensor:
    """Return whether no estimate of a job can exceed float32: (jobs,)."""
    norms = rounded.largest.amax(1).double() * rounded.counts.sum(1).double().sqrt()
    return scales.amax(1) * growth * norms <= LARGEST
