"""Device batches: only where updates are on a GPU and a kernel knows their quantizer."""

from __future__ import annotations

import numpy as np
import torch

import fedpaq
from fedpaq import codec
from fedpaq.server.device_batch import DEVICE_BATCHES, ValuesOnDevice, device_batch
from small_rounds import work_of


def test_updates_on_the_host_need_no_device():
    updates = torch.zeros(2, 3)
    for quantizer in (fedpaq.Identity(), fedpaq.LowPrecision(1)):
        assert device_batch(quantizer, updates, work_of(1, 2)) is None
        assert device_batch(quantizer, updates.numpy(), work_of(1, 2)) is None


def test_a_quantizer_of_its_own_has_no_kernel():
    class Own(fedpaq.LowPrecision):
        pass

    class OnGpu:
        is_cuda = True

    assert device_batch(Own(1), OnGpu(), work_of(1, 2)) is None
    assert {fedpaq.LowPrecision, fedpaq.Identity} <= set(DEVICE_BATCHES)
    assert DEVICE_BATCHES[fedpaq.Identity].size_source == "encoded"


def test_plain_values_are_fetched_with_zeros_for_what_is_not_finite():
    updates = torch.tensor([[1.0, 2.0], [np.nan, 0.0], [3.0, np.inf]])
    batch = ValuesOnDevice(fedpaq.Identity(), updates, work_of(1, 3))
    messages, usable = batch.fetch()
    assert usable.tolist() == [True, False, False]
    assert [message.dequantize().tolist() for message in messages] == [[1.0, 2.0], [0.0, 0.0], [0.0, 0.0]]
    assert batch.payload_bytes().tolist() == [codec.raw_bytes(2)] * 3
