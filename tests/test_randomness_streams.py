"""Streams of draws: Philox in plain integers, the laws drawn from them, and edges of every argument."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpaq import randomness
from fedpaq.errors import ConfigError
from fedpaq.kernels import numba as compiled
from fedpaq.randomness import (
    Key,
    Purpose,
    first_uniforms,
    minibatches,
    normals,
    permutation,
    philox,
    sample_without_replacement,
    uniforms,
    words,
)

uint32 = st.integers(0, 2**32 - 1)


@pytest.fixture(params=[True, False], ids=["numba", "numpy"])
def either(request, monkeypatch):
    """With the kernels, then without."""
    if not request.param:
        monkeypatch.setattr(compiled, "load", lambda name: None)


def plain_philox(counter, key):
    """Philox 4x32-10 as Salmon et al. 2011 write it, on Python's integers."""
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * c0, 2**32)
        high1, low1 = divmod(0xCD9E8D57 * c2, 2**32)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return [c0, c1, c2, c3]


@given(st.lists(st.tuples(*[uint32] * 6), min_size=1, max_size=5))
@settings(max_examples=50, deadline=None)
def test_philox_is_the_published_rounds_whatever_the_shape(cases):
    numbers = np.array(cases, np.uint32)
    result = philox(numbers[:, :4], numbers[:, 4:])
    assert result.dtype == np.uint32 and result.shape == (len(cases), 4)
    assert result.tolist() == [plain_philox(case[:4], case[4:]) for case in cases]
    assert np.array_equal(philox(numbers[None, :, :4], numbers[None, :, 4:])[0], result)


def test_one_bit_of_any_input_flips_about_half_of_the_output():
    """128 counter and 64 key bits, one flipped at a time: 192 * 128 output bits, half of them flipped."""
    base = np.zeros(6, np.uint32)
    flipped = np.array(
        [[(1 << bit) * (word == at) for at in range(6)] for word in range(6) for bit in range(32)], np.uint32
    )
    changed = philox(flipped[:, :4], flipped[:, 4:]) ^ philox(base[:4], base[4:])
    bits = np.unpackbits(changed.view(np.uint8)).size
    share = np.unpackbits(changed.view(np.uint8)).mean()
    assert abs(share - 0.5) < 5 * 0.5 / math.sqrt(bits)


@pytest.mark.usefixtures("either")
def test_a_stream_is_cut_and_joined_at_any_draw():
    key = Key(seed=2**64 - 1, round=2**32 - 1, client=2**32 - 1)
    whole = words(Purpose.MODULE, key, 600, start=100)
    for cut in (0, 1, 155, 156, 157, 599, 600):
        parts = words(Purpose.MODULE, key, cut, 100), words(Purpose.MODULE, key, 600 - cut, 100 + cut)
        assert np.array_equal(np.concatenate(parts), whole)


@pytest.mark.usefixtures("either")
def test_nothing_drawn_is_an_empty_array():
    key = Key(seed=1)
    assert words(Purpose.CHECK, key, 0).size == uniforms(Purpose.CHECK, key, 0).size == 0
    assert normals(Purpose.CHECK, key, 0).size == permutation(Purpose.CHECK, key, 0).size == 0
    nobody = np.zeros(0, np.uint64), 3, np.zeros(0, np.int64)
    assert first_uniforms(Purpose.CHECK, *nobody).shape == (0,)
    assert minibatches(*nobody, np.zeros(0, np.int64), 5).shape == (0, 5)
    assert minibatches(np.zeros(2, np.uint64), 3, np.arange(2), np.ones(2, np.int64), 0).shape == (2, 0)


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("count", [1, 255, 256, 257, 600])
def test_minibatches_are_words_of_the_client_s_own_stream_scaled_to_its_size(count):
    seeds, clients = np.array([5, 2**64 - 1], np.uint64), np.array([9, 2**32 - 1])
    sizes = np.array([10, 2**32])
    drawn = minibatches(seeds, 4, clients, sizes, count)
    for row, seed, client, size in zip(drawn, seeds.tolist(), clients.tolist(), sizes.tolist(), strict=True):
        stream = words(Purpose.MINIBATCH, Key(seed=seed, round=4, client=client), count).tolist()
        assert row.tolist() == [word * size >> 32 for word in stream]


@pytest.mark.usefixtures("either")
def test_a_client_with_one_sample_always_draws_it():
    drawn = minibatches(np.arange(3, dtype=np.uint64), 0, np.arange(3), np.ones(3, np.int64), 50)
    assert not drawn.any()


@pytest.mark.usefixtures("either")
def test_a_first_uniform_is_the_first_of_its_stream():
    seeds, clients = np.array([5, 6, 2**63], np.uint64), np.array([0, 2**31, 2**32 - 1])
    expected = [
        uniforms(Purpose.COMPUTE_TIME, Key(seed=seed, round=8, client=client), 1)[0]
        for seed, client in zip(seeds.tolist(), clients.tolist(), strict=True)
    ]
    assert first_uniforms(Purpose.COMPUTE_TIME, seeds, 8, clients).tolist() == expected


def test_uniforms_are_centres_of_their_words_intervals():
    key = Key(seed=3)
    draws, u = words(Purpose.CHECK, key, 1000), uniforms(Purpose.CHECK, key, 1000)
    assert np.array_equal((u * 2**32).astype(np.uint64), draws) and np.array_equal((u * 2**33) % 2, np.ones(1000))


def test_normals_have_the_moments_and_the_tails_of_the_normal_law():
    count = 100_000
    z = normals(Purpose.CHECK, Key(seed=4), count)
    # Variances of z, z^2, z^3 and z^4 are 1, 2, 15 and 96.
    for power, mean, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((z**power).mean() - mean) < 5 * math.sqrt(variance / count)
    # The two halves come from the same radii: their product must still have mean 0 and variance 1.
    half = count // 2
    assert abs((z[:half] * z[half:]).mean()) < 5 / math.sqrt(half)
    beyond = math.erfc(2 / math.sqrt(2))
    assert abs((np.abs(z) > 2).mean() - beyond) < 5 * math.sqrt(beyond * (1 - beyond) / count)


def test_an_odd_number_of_normals_drops_the_last_of_one_more():
    key = Key(seed=4)
    assert np.array_equal(normals(Purpose.CHECK, key, 7), normals(Purpose.CHECK, key, 8)[:7])
    assert np.isfinite(normals(Purpose.CHECK, key, 1)).all()


def test_permutations_hold_everything_once_and_every_order_equally_often():
    assert sorted(permutation(Purpose.PARTITION, Key(seed=1), 1000).tolist()) == list(range(1000))
    trials = 6000
    seen = [tuple(permutation(Purpose.PARTITION, Key(seed=2, round=trial), 3).tolist()) for trial in range(trials)]
    counts = [seen.count(order) for order in itertools.permutations(range(3))]
    chi_square = sum((count - trials / 6) ** 2 / (trials / 6) for count in counts)
    assert sum(counts) == trials and chi_square < 5 + 5 * math.sqrt(10)  # 5 degrees of freedom


@pytest.mark.parametrize(("num_clients", "r"), [(2**32, 1), (2**32, 50), (100, 99), (100, 100), (1, 1)])
def test_participants_are_a_set_of_clients(num_clients, r):
    chosen = sample_without_replacement(Key(seed=7, round=1), num_clients, r)
    assert chosen.dtype == np.int64 and len(set(chosen.tolist())) == r
    assert chosen.tolist() == sorted(chosen.tolist()) and 0 <= chosen[0] <= chosen[-1] < num_clients
    if r == num_clients:
        assert chosen.tolist() == list(range(r))


def test_every_client_takes_part_equally_often():
    """4,000 rounds, 3 of 8 clients: each takes part in 3/8 of them, five standard errors."""
    rounds, share = 4000, 3 / 8
    chosen = [sample_without_replacement(Key(seed=9, round=round), 8, 3) for round in range(rounds)]
    shares = np.bincount(np.concatenate(chosen), minlength=8) / rounds
    assert np.abs(shares - share).max() < 5 * math.sqrt(share * (1 - share) / rounds)


def test_participants_of_other_rounds_and_seeds_are_drawn_anew():
    """50 of 1000: two independent draws share 2.5 clients on average; 20 has probability below 1e-12."""
    base, *others = (
        set(sample_without_replacement(Key(seed=seed, round=round), 1000, 50).tolist())
        for seed, round in ((1, 1), (1, 2), (2, 1), (1 + 2**32, 1), (1, 1 + 2**31))
    )
    assert all(len(base & other) < 20 for other in others)


def test_neighbouring_streams_are_uncorrelated():
    """Words of clients j and j + 1, of rounds k and k + 1, and of any two purposes; five standard errors."""
    count = 4000
    keys = [Key(seed=1, round=round, client=client) for round in (0, 1) for client in (0, 1)]
    streams = np.stack([uniforms(purpose, key, count) for key in keys for purpose in Purpose]) - 0.5
    correlations = (streams @ streams.T) / count * 12
    off = correlations[~np.eye(len(streams), dtype=bool)]
    # 36 * 35 / 2 pairs of standard error 1 / sqrt(n): the largest of 630 stays below six.
    assert np.abs(off).max() < 6 / math.sqrt(count)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"seed": -1}, r"^seed=-1 is out of range; choose 0\.\.18446744073709551615$"),
        ({"seed": 2**64}, "^seed=18446744073709551616 is out of range"),
        ({"seed": 1.0}, "^seed=1.0 is not an integer; choose 0"),
        ({"seed": True}, "^seed=True is not an integer"),
        ({"seed": "1"}, "^seed='1' is not an integer"),
        ({"seed": 0, "round": 2**32}, r"^round=4294967296 is out of range; choose 0\.\.4294967295$"),
        ({"seed": 0, "client": -1}, "^client=-1 is out of range"),
    ],
)
def test_a_key_that_names_no_stream_is_refused_in_words(arguments, complaint):
    with pytest.raises(ConfigError, match=complaint):
        Key(**arguments)


@pytest.mark.parametrize(
    ("num_clients", "r", "complaint"),
    [
        (0, 1, r"num_clients=0 is out of range; choose 1\.\.4294967296"),
        (2**32 + 1, 1, "num_clients=4294967297 is out of range"),
        (5, 0, r"clients_per_round=0 is out of range; choose 1\.\.5"),
        (5, 2.0, r"clients_per_round=2.0 is not an integer; choose 1\.\.5"),
    ],
)
def test_participants_that_cannot_be_drawn_are_refused_in_words(num_clients, r, complaint):
    with pytest.raises(ConfigError, match=complaint):
        sample_without_replacement(Key(seed=0), num_clients, r)


def test_keys_are_values():
    assert Key(seed=1, round=2, client=3) == Key(seed=1, round=2, client=3) != Key(seed=1, round=3, client=2)
    assert len({Key(seed=1), Key(seed=1), Key(seed=2)}) == 2
    with pytest.raises(TypeError):
        Key(1, 2, 3)  # which number is the round must be said


def test_purposes_keep_their_numbers():
    """Renumbering would change every run of every seed."""
    assert {purpose.name: int(purpose) for purpose in Purpose} == {
        "PARTICIPANTS": 1,
        "MINIBATCH": 2,
        "DITHER": 3,
        "COMPUTE_TIME": 4,
        "PARTITION": 5,
        "INITIAL_PARAMS": 6,
        "DATA": 7,
        "CHECK": 8,
        "MODULE": 9,
        "DITHER_LOW": 10,
        "ROTATION": 11,
        "ROTATION_AGAIN": 12,
        "ROTATION_THIRD": 13,
        "SCALE": 14,
    }


def test_draws_do_not_touch_numpy_s_global_generator():
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    randomness.normals(Purpose.CHECK, Key(seed=1), 100)
    sample_without_replacement(Key(seed=1), 100, 10)
    assert np.array_equal(np.random.get_state()[1], before)  # noqa: NPY002
