"""Devices: names that cannot be used are refused by name."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedpaq
from fedpaq.errors import ConfigError
from fedpaq.hardware.devices import require_device, to_tensor


def test_the_cpu_has_no_number():
    assert require_device("cpu") == require_device("cpu:0") == torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "complaint"), [("tpu", "not known to torch"), ("meta", "not supported"), ("", "not known")]
)
def test_a_device_that_cannot_be_used_is_refused(name, complaint, logistic, config):
    with pytest.raises(ConfigError, match=complaint):
        fedpaq.train(logistic, config, device=name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_missing_gpu_is_said():
    with pytest.raises(ConfigError, match="finds no CUDA device"):
        require_device("cuda")


def test_unsigned_seeds_keep_their_bits():
    seeds = np.array([0, 2**63 + 5, 2**64 - 1], np.uint64)
    placed = to_tensor(seeds, torch.device("cpu"))
    assert placed.dtype == torch.int64
    assert np.array_equal(placed.numpy().view(np.uint64), seeds)
