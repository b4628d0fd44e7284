"""The size estimate: what encoding would have given, to a byte."""

from __future__ import annotations

import numpy as np
import pytest

from codec_cases import arithmetic_message, gaussian_message, uneven_message
from fedpaq.codec import encode_batch, estimate_payload_bytes, wire
from fedpaq.errors import ConfigError
from fedpaq.kernels import numba as compiled
from fedpaq.quantizers import QuantizedMessage


def estimate(batch):
    first = batch[0]
    at = [np.flatnonzero(message.signed_levels) for message in batch]
    values = np.concatenate([m.signed_levels[part] for m, part in zip(batch, at, strict=True)])
    ends = np.cumsum([0, *map(len, at)])
    return estimate_payload_bytes(
        ends,
        np.concatenate(at),
        values,
        dimension=first.dimension,
        levels=first.levels,
        bucket_size=first.bucket_size,
    )


@pytest.mark.parametrize("bucket_size", [None, 128])
@pytest.mark.parametrize("levels", [1, 5, 64, 400, 32767])
@pytest.mark.parametrize("maker", [gaussian_message, uneven_message])
@pytest.mark.parametrize("dimension", [785, 20_000])
def test_the_estimate_is_right_to_two_bytes_and_half_a_percent_on_average(
    maker, dimension, levels, bucket_size
):
    batch = [maker(dimension, levels, bucket_size, seed=seed) for seed in range(24 if dimension < 1000 else 3)]
    sizes = np.array([len(payload) for payload in encode_batch(batch)])
    guesses = estimate(batch)
    assert np.abs(guesses - sizes).max() < 2
    assert abs(guesses.mean() / sizes.mean() - 1) < 0.005 + 0.5 / sizes.sum() ** 0.5 / len(batch) ** 0.5


def test_halved_counts_are_followed():
    # A context that sees over 10,000 decisions is halved twenty times.
    message = arithmetic_message(60_000, 3, 2)
    size = len(encode_batch([message])[0])
    assert abs(estimate([message])[0] - size) < 2


def test_the_block_code_is_estimated_too(monkeypatch):
    monkeypatch.setattr(wire, "BLOCK_NONZEROS", 10_000)
    batch = [
        gaussian_message(50_000, 224),
        uneven_message(50_000, 224),
        gaussian_message(50_000, 224, seed=1),
    ]
    sizes = np.array([len(payload) for payload in encode_batch(batch)])
    assert np.abs(estimate(batch) / sizes - 1).max() < 0.005


def test_empty_messages_and_batches_are_estimated():
    zeros = QuantizedMessage(np.zeros(100, np.int8), np.zeros(1, np.float32), 1)
    assert estimate([zeros])[0] == len(encode_batch([zeros])[0])
    empty = estimate_payload_bytes([0], [], [], dimension=10, levels=1)
    assert empty.shape == (0,)


def test_it_needs_numpy_alone(monkeypatch):
    batch = [uneven_message(5000, 30)]
    expected = estimate(batch)

    def refuse(name):
        raise AssertionError(f"asked for {name}")

    monkeypatch.setattr(compiled, "load", refuse)
    assert estimate(batch) == expected


def test_arrays_that_do_not_match_are_refused():
    with pytest.raises(ConfigError, match="do not match"):
        estimate_payload_bytes([0, 2], [1], [1], dimension=5, levels=1)
