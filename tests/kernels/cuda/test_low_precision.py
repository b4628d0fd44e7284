"""The quantizer in Triton: messages and sums are the twin's to the bit."""

from __future__ import annotations

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device here"),
]


@pytest.mark.parametrize("name", ["check_kernels", "check_non_finite"])
def test_the_device_agrees_with_its_twin(gpu_checks, name):
    assert getattr(gpu_checks, name)(torch.device("cuda", 0))
