"""Rotated in Triton: rotations, levels, messages and sums are the CPU's to the bit."""

from __future__ import annotations

import sys

import pytest
import torch

from repository import ROOT

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device here"),
]


@pytest.fixture
def rotated_checks(monkeypatch):
    """The module benchmarks/rotated_checks.py."""
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    import rotated_checks

    return rotated_checks


@pytest.mark.parametrize("shape", [(700, 1), (9000, 1), (92_027, 23), (92_027, 3), (92_027, 1), (1_000_003, 5)])
@pytest.mark.parametrize("whole", [1024, 16_384])
def test_kernels_agree_with_their_twins_however_blocks_are_tiled(rotated_checks, shape, whole):
    from fedpaq.kernels import cuda

    tiling = cuda.load("rotation").Tiling(whole=whole)
    rotated_checks.check_shape(torch.device("cuda", 0), *shape, tiling)


@pytest.mark.parametrize(("dimension", "bits"), [(700, 0.5), (5000, 0.05), (9000, 2.0), (92_027, 0.03)])
def test_messages_and_sums_are_those_of_the_host(rotated_checks, dimension, bits):
    assert rotated_checks.check_batch(torch.device("cuda", 0), dimension, bits)
