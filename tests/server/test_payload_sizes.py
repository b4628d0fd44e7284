"""Payload sizes of levels on a device: those of the encoder, on CPU tensors."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import fedpaq
from codec_cases import gaussian_message, uneven_message
from fedpaq import codec
from fedpaq.codec import level_code
from fedpaq.kernels import numba as compiled
from fedpaq.quantizers import LowPrecision, RawMessage
from fedpaq.server import payload_sizes
from fedpaq.server.payload_sizes import estimated_bytes, exact_bytes

BLOCK = 2048


def device_batch(messages):
    """The messages as ``cuda.low_precision`` leaves them: padded rows and block statistics."""
    signed = np.stack([message.signed_levels for message in messages])
    padded = np.pad(signed, ((0, 0), (0, -signed.shape[1] % BLOCK)))
    blocks = np.abs(padded.astype(np.int32)).reshape(len(signed), -1, BLOCK)
    return SimpleNamespace(
        signed_levels=torch.from_numpy(padded),
        nonzeros=torch.from_numpy((blocks > 0).sum(axis=2, dtype=np.int32)),
        magnitudes=torch.from_numpy(blocks.sum(axis=2, dtype=np.int32)),
    )


def sizes_of(messages):
    return np.array([len(payload) for payload in codec.encode_batch(messages)])


@pytest.mark.parametrize("bucket_size", [None, 128])
@pytest.mark.parametrize("levels", [1, 5, 400])
@pytest.mark.parametrize("maker", [gaussian_message, uneven_message])
def test_sizes_are_exact_with_numba_and_without(maker, levels, bucket_size, monkeypatch):
    messages = [maker(5_000, levels, bucket_size, seed=seed) for seed in range(4)]
    quantizer, batch, sizes = LowPrecision(levels, bucket_size), device_batch(messages), sizes_of(messages)
    assert np.array_equal(estimated_bytes(batch, 5_000, quantizer, BLOCK), sizes)
    monkeypatch.setattr(compiled, "load", lambda name: None)
    assert np.array_equal(estimated_bytes(batch, 5_000, quantizer, BLOCK), sizes)


def test_messages_without_non_zeros_are_counted():
    messages = [gaussian_message(500, 3), gaussian_message(500, 3)]
    messages[0] = replace(messages[0], signed_levels=np.zeros(500, np.int8))
    sizes = estimated_bytes(device_batch(messages), 500, LowPrecision(3), BLOCK)
    assert np.array_equal(sizes, sizes_of(messages))


def test_large_dense_messages_are_sized_by_the_block_code(monkeypatch):
    monkeypatch.setattr(level_code, "BLOCK_NONZEROS", 10_000)
    messages = [gaussian_message(20_000, 224), gaussian_message(20_000, 1, seed=1)]
    signed = torch.from_numpy(np.stack([m.signed_levels.astype(np.int16) for m in messages]))
    counts = np.array([np.count_nonzero(message.signed_levels) for message in messages])
    sizes = exact_bytes(signed[:1], counts[:1], 20_000, LowPrecision(224))
    assert sizes[0] == sizes_of(messages[:1])[0]


@pytest.mark.parametrize("levels", [1, 5])
def test_a_part_with_many_non_zeros_is_sized_from_some_of_its_messages(monkeypatch, levels):
    messages = [gaussian_message(20_000, levels, seed=seed) for seed in range(24)]
    batch = device_batch(messages)
    monkeypatch.setattr(payload_sizes, "EXACT", int(batch.nonzeros.sum()) // 4)
    sizes = estimated_bytes(batch, 20_000, LowPrecision(levels), BLOCK)
    assert abs(sizes.sum() / sizes_of(messages).sum() - 1) < 0.005


def test_a_float32_payload_has_a_known_length():
    assert codec.raw_bytes(785) == len(fedpaq.encode(RawMessage(np.ones(785, np.float32))))
