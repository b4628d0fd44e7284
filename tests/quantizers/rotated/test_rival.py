"""Rival: LowPrecision is taken where it is better, and only there."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedpaq import Key, LowPrecision, encode
from fedpaq.quantizers import QuantizedMessage
from fedpaq.quantizers.rotated import rival
from fedpaq.quantizers.rotated.message import RotatedMessage
from fedpaq.quantizers.rotated.quantizer import Rotated
from fedpaq.quantizers.rotated.rival import better_levels, deviations


def test_low_precision_is_used_where_few_coordinates_carry_the_update():
    spiky = np.zeros(20_000, np.float32)
    spiky[[5, 900, 17_000]] = [1.0, -2.0, 0.5]
    message = Rotated(payload_bytes=60).quantize(spiky, key=Key(seed=0))
    assert isinstance(message, QuantizedMessage)
    assert np.linalg.norm(message.dequantize() - spiky) < 0.05
    assert isinstance(Rotated(payload_bytes=300).quantize(np.ones(20_000, np.float32), key=Key(seed=0)), RotatedMessage)


def clustered(p):
    """An update whose scale varies by powers of ten within hundreds of coordinates, as those of networks do."""
    rng = np.random.default_rng(p)
    scale = np.repeat(np.exp(2.5 * rng.standard_normal(-(-p // 50))), 50)[:p]
    return (rng.standard_normal(p) * scale).astype(np.float32)


def mean_error(messages, update):
    exact = update.astype(np.float64)
    return np.mean([((message.dequantize() - exact) ** 2).sum() for message in messages]) / (exact**2).sum()


@pytest.mark.parametrize("p", [785, 60_000])
@pytest.mark.parametrize("levels", [160, 640])
def test_clusters_are_found_and_rotated_is_no_worse_than_low_precision(p, levels):
    update, keys = clustered(p), [Key(seed=0, client=client) for client in range(6)]
    plain = LowPrecision(levels).quantize_batch(np.broadcast_to(update, (6, p)), keys)
    size = np.mean([len(encode(message)) for message in plain])
    ours = Rotated(bits=8 * size / p).quantize_batch(np.broadcast_to(update, (6, p)), keys)
    assert isinstance(ours[0], QuantizedMessage)
    assert np.mean([len(encode(message)) for message in ours]) < 1.03 * size
    assert mean_error(ours, update) < 1.15 * mean_error(plain, update)


@pytest.mark.parametrize("p", [785, 60_000])
def test_a_message_that_was_promised_short_is_hardly_ever_drawn_too_long(p):
    update, norm = clustered(p), float(np.linalg.norm(clustered(p)))
    magnitude = float(np.abs(update).sum())
    for most in (p // 8, p // 4):
        rival = better_levels(update, norm, magnitude, most, math.inf, True)
        assert rival is not None
        draws = 400 if p < 1000 else 20
        keys = [Key(seed=5, client=client) for client in range(draws)]
        messages = rival.quantize_batch(np.broadcast_to(update, (draws, p)), keys)
        late = np.mean([len(encode(message)) > most for message in messages])
        assert late <= 0.0228 + 5 * math.sqrt(0.0228 / draws)  # two deviations or more of room
        assert np.mean([len(encode(message)) for message in messages]) > 0.85 * most


@pytest.mark.parametrize(("wild", "wins"), [(False, False), (True, True)])
def test_a_part_of_a_large_update_says_whether_all_of_it_is_looked_at(wild, wins, monkeypatch):
    """The choice is that of the whole; where LowPrecision has no chance the whole is not looked at."""
    p = 2**20 + 5
    heavy = np.random.default_rng(0).standard_normal((2, p))
    update = clustered(p) if wild else (heavy[0] * np.exp(heavy[1])).astype(np.float32)
    norm, magnitude = float(np.linalg.norm(update)), float(np.abs(update).sum())
    bits = 2.0 if wild else 0.1
    target = int(bits * p / 8)
    error = Rotated(bits=bits).variance_bound(p)  # as that of a plan, or more
    looked = []
    of = rival.Magnitudes.of
    monkeypatch.setattr(rival.Magnitudes, "of", lambda some, norm: looked.append(some.size) or of(some, norm))
    found = better_levels(update, norm, magnitude, target, error, False)
    assert (found is not None) == wins
    assert looked == [128 * 1024, p] if wins else looked == [128 * 1024]
    monkeypatch.setattr(rival, "part_may_win", lambda *_: True)
    assert found == better_levels(update, norm, magnitude, target, error, False)


def test_deviations_bound_the_bias():
    for levels in (1, 7, 100, 5000):
        density = math.exp(-(deviations(levels) ** 2) / 2) / math.sqrt(2 * math.pi)
        assert density / (2 * levels) <= 8.01e-4


def test_the_choice_does_not_depend_on_the_key():
    for update in (clustered(785), clustered(60_000)):
        kinds = {
            type(message)
            for message in Rotated(bits=2.0).quantize_batch(
                np.broadcast_to(update, (20, update.size)), [Key(seed=9, client=client) for client in range(20)]
            )
        }
        assert len(kinds) == 1
