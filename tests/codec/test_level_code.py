"""The code of levels: gaps where they are sparse, blocks where they are dense, close to the entropy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from codec_cases import gaussian_message, uneven_message
from fedpaq.codec import accumulate, decode, encode, encode_batch, level_code, order0_entropy, read_header
from fedpaq.codec.frame import BLOCK, GAP
from fedpaq.quantizers import QuantizedMessage


def test_every_level_of_the_widest_quantizer_survives():
    signed = np.arange(-32767, 32768).astype(np.int16)
    message = QuantizedMessage(signed, np.ones(1, np.float32), 32767)
    assert decode(encode(message)) == message


def test_large_dense_messages_use_the_block_code(monkeypatch):
    monkeypatch.setattr(level_code, "BLOCK_NONZEROS", 500)
    dense, sparse = gaussian_message(2000, 45), gaussian_message(100_000, 5)
    assert read_header(encode(dense)).code == BLOCK
    assert read_header(encode(sparse)).code == GAP
    assert decode(encode(dense), dimension=2000) == dense
    total, expected = np.zeros(2000), np.zeros(2000)
    accumulate(encode(dense), total, 0.1)
    dense.add_to(expected, 0.1)
    assert np.array_equal(total, expected)


@pytest.mark.parametrize("levels", [1, 5, 10, 64, None])
@pytest.mark.parametrize("dimension", [785, 7850, 92_027])
def test_gaussian_payloads_stay_within_two_percent_of_the_entropy(dimension, levels):
    levels = levels or math.isqrt(dimension - 1) + 1
    batch = [gaussian_message(dimension, levels, seed=seed) for seed in range(3)]
    for message, payload in zip(batch, encode_batch(batch), strict=True):
        assert len(payload) <= 1.02 * order0_entropy(message.signed_levels) / 8 + 24


@pytest.mark.parametrize("levels", [1, 5, 10, 29, 64])
def test_not_one_small_payload_in_hundreds_is_larger_than_promised(levels):
    """Where a message is too short to learn from: there the weights it starts with decide."""
    messages = [gaussian_message(785, levels, seed=seed) for seed in range(300)]
    excess = [
        len(payload) - 1.02 * order0_entropy(message.signed_levels) / 8
        for message, payload in zip(messages, encode_batch(messages), strict=True)
    ]
    assert max(excess) <= 24


def test_density_that_varies_along_the_vector_is_exploited():
    message = uneven_message(50_000, 100)
    assert len(encode(message)) < 0.8 * order0_entropy(message.signed_levels) / 8
