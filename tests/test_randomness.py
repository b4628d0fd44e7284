"""Stateless draws: known answers, the compiled twin, uniformity, independence of streams."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpaq import randomness
from fedpaq.errors import ConfigError
from fedpaq.kernels import numba as compiled
from fedpaq.randomness import Key, Keys, Purpose, philox, sample_without_replacement, uniforms, words, words_numpy

ONES = np.full(4, 0xFFFFFFFF, np.uint32)
KNOWN_ANSWERS = [  # Random123's published vectors for philox4x32-10
    (np.zeros(4, np.uint32), np.zeros(2, np.uint32), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    (ONES, ONES[:2], "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        np.array([0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], np.uint32),
        np.array([0xA4093822, 0x299F31D0], np.uint32),
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_philox_gives_the_published_answers(counter, key, expected):
    assert " ".join(f"{word:08x}" for word in philox(counter, key)) == expected


@given(
    seed=st.integers(0, 2**64 - 1),
    round=st.integers(0, 2**32 - 1),
    client=st.integers(0, 2**32 - 1),
    purpose=st.sampled_from(list(Purpose)),
    start=st.one_of(st.integers(0, 2000), st.integers(2**33, 2**40)),
    count=st.integers(0, 700),
)
@settings(max_examples=60, deadline=None)
def test_compiled_words_equal_the_numpy_twin(seed, round, client, purpose, start, count):
    key = Key(seed=seed, round=round, client=client)
    assert np.array_equal(words(purpose, key, count, start), words_numpy(purpose, key, start, count))


@pytest.mark.usefixtures("spread_over_threads")
def test_every_compiled_draw_equals_its_twin_without_numba(monkeypatch):
    seeds = np.array([1, 2**63 + 5, 7], np.uint64)
    clients, sizes = np.array([0, 9, 2**31]), np.array([1, 200, 2**31])

    def draw():
        return (
            randomness.minibatches(seeds, 4, clients, sizes, 300),
            randomness.first_uniforms(Purpose.COMPUTE_TIME, seeds, 4, clients),
            randomness.permutation(Purpose.PARTITION, Key(seed=5), 1000),
            sample_without_replacement(Key(seed=3, round=2), 10**6, 100),
        )

    fast = draw()
    monkeypatch.setattr(compiled, "load", lambda name: None)
    for quick, slow in zip(fast, draw(), strict=True):
        assert np.array_equal(quick, slow)
        assert quick.dtype == slow.dtype


def test_draws_do_not_depend_on_where_a_stream_is_entered():
    whole = words(Purpose.DITHER, Key(seed=4, round=1, client=2), 2000)
    for start, stop in [(0, 1), (63, 65), (255, 257), (700, 1999)]:
        part = words(Purpose.DITHER, Key(seed=4, round=1, client=2), stop - start, start)
        assert np.array_equal(part, whole[start:stop])


def test_streams_differ_in_seed_purpose_round_and_client():
    base = words(Purpose.DITHER, Key(seed=1, round=1, client=1), 64)
    others = [
        words(Purpose.MINIBATCH, Key(seed=1, round=1, client=1), 64),
        words(Purpose.DITHER, Key(seed=2, round=1, client=1), 64),
        words(Purpose.DITHER, Key(seed=1 + 2**32, round=1, client=1), 64),
        words(Purpose.DITHER, Key(seed=1, round=2, client=1), 64),
        words(Purpose.DITHER, Key(seed=1, round=1, client=2), 64),
    ]
    # 64 words of 32 bits: a single shared word has probability 64 * 2^-32.
    assert all(not np.any(base == other) for other in others)


def test_uniforms_have_the_moments_of_the_uniform_distribution():
    count = 200_000
    u = uniforms(Purpose.CHECK, Key(seed=9), count)
    assert u.min() > 0 and u.max() < 1
    # Standard errors: sqrt(1/12 / n) of the mean, sqrt(1/180 / n) of the mean square deviation.
    assert abs(u.mean() - 0.5) < 5 * math.sqrt(1 / 12 / count)
    assert abs(((u - 0.5) ** 2).mean() - 1 / 12) < 5 * math.sqrt(1 / 180 / count)


def test_participants_are_distinct_ascending_and_in_range():
    for num_clients, clients_per_round in [(1, 1), (5, 5), (50, 25), (10**9, 1000)]:
        clients = sample_without_replacement(Key(seed=1, round=7), num_clients, clients_per_round)
        assert clients.size == clients_per_round
        assert np.all(np.diff(clients) > 0)
        assert clients[0] >= 0 and clients[-1] < num_clients


def test_every_subset_is_equally_likely():
    trials, subsets = 20_000, {}
    for round in range(trials):
        chosen = tuple(sample_without_replacement(Key(seed=2, round=round), 5, 2).tolist())
        subsets[chosen] = subsets.get(chosen, 0) + 1
    assert len(subsets) == 10
    expected = trials / 10
    chi_square = sum((count - expected) ** 2 / expected for count in subsets.values())
    # 9 degrees of freedom: mean 9, standard deviation sqrt(18); five of them above.
    assert chi_square < 9 + 5 * math.sqrt(18)


def test_minibatch_positions_are_uniform_over_the_client():
    count = 100_000
    positions = randomness.minibatches(np.array([3], np.uint64), 0, np.array([1]), np.array([7]), count).ravel()
    counts = np.bincount(positions, minlength=7)
    chi_square = ((counts - count / 7) ** 2 / (count / 7)).sum()
    assert chi_square < 6 + 5 * math.sqrt(12)


@pytest.mark.parametrize("bad", [{"seed": -1}, {"seed": 2**64}, {"seed": 0, "round": -1}, {"seed": 0, "client": 2**32}])
def test_a_key_out_of_range_is_refused(bad):
    with pytest.raises(ConfigError, match="out of range"):
        Key(**bad)


def test_more_participants_than_clients_are_refused():
    with pytest.raises(ConfigError, match=r"clients_per_round=6 is out of range; choose 1\.\.5"):
        sample_without_replacement(Key(seed=0), 5, 6)


@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.array, torch.tensor])
def test_a_key_holds_pythons_integers_whatever_it_is_given(kind):
    key = Key(seed=kind(3), round=kind(2), client=kind(1))
    assert key == Key(seed=3, round=2, client=1) and {type(part) for part in vars(key).values()} == {int}
    assert np.array_equal(
        words(Purpose.DITHER, key, 2**16), words(Purpose.DITHER, Key(seed=3, round=2, client=1), 2**16)
    )


@pytest.mark.parametrize(
    ("part", "bad"),
    [
        ("seeds", np.zeros(3)),
        ("seeds", np.zeros(2, np.uint64)),
        ("rounds", np.zeros(1, np.int64)),
        ("rounds", np.zeros(3, np.int32)),
        ("clients", np.zeros((3, 1), np.int64)),
        ("clients", None),
    ],
)
def test_keys_whose_parts_do_not_fit_each_other_are_refused(part, bad):
    """A kernel would read beyond them."""
    good = {"seeds": np.zeros(3, np.uint64), "rounds": np.zeros(3, np.int64), "clients": np.arange(3)}
    assert Keys(**good)[2] == Key(seed=0, client=2)
    with pytest.raises(ConfigError, match=r"do not fit the keys; pass \(r,\) u?int64, as many as seeds"):
        Keys(**{**good, part: bad})
