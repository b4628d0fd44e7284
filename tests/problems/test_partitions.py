"""Partitions: every sample dealt once, sizes as asked, skew as the Dirichlet says."""

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpaq.errors import ConfigError
from fedpaq.problems import Partition, by_label, dirichlet, iid
from fedpaq.problems.partitions import _gammas

counts = st.tuples(st.integers(1, 40), st.integers(0, 300)).map(lambda pair: (pair[0], sum(pair)))
seeds = st.integers(0, 2**64 - 1)


def labels_of(num_samples: int, num_labels: int = 3) -> np.ndarray:
    return np.arange(num_samples) % num_labels


def owns_every_sample_once(partition: Partition, num_samples: int) -> bool:
    return np.array_equal(np.sort(partition.indices), np.arange(num_samples))


@settings(max_examples=40, deadline=None)
@given(counts=counts, seed=seeds)
def test_iid_deals_every_sample_once_and_evenly(counts, seed):
    num_clients, num_samples = counts
    partition = iid(num_samples, num_clients, seed=seed)
    assert owns_every_sample_once(partition, num_samples)
    assert partition.num_clients == num_clients
    assert np.ptp(partition.sizes()) <= 1


@settings(max_examples=40, deadline=None)
@given(counts=counts, seed=seeds, alpha=st.sampled_from([1e-6, 0.1, 1.0, 1e6]))
def test_dirichlet_deals_every_sample_once_and_leaves_no_client_empty(counts, seed, alpha):
    num_clients, num_samples = counts
    partition = dirichlet(labels_of(num_samples), num_clients, alpha=alpha, seed=seed)
    assert owns_every_sample_once(partition, num_samples)
    assert partition.num_clients == num_clients
    assert partition.sizes().min() >= 1


@settings(max_examples=40, deadline=None)
@given(counts=counts, seed=seeds, labels_per_client=st.integers(1, 3))
def test_by_label_deals_every_sample_once_and_nearly_evenly(counts, seed, labels_per_client):
    num_clients, num_samples = counts
    num_samples = max(num_samples, num_clients * labels_per_client)
    partition = by_label(labels_of(num_samples), num_clients, labels_per_client=labels_per_client, seed=seed)
    assert owns_every_sample_once(partition, num_samples)
    assert np.ptp(partition.sizes()) <= labels_per_client  # each shard is even to within one


def test_by_label_gives_each_client_as_many_labels_as_asked():
    labels = np.repeat(np.arange(10), 100)
    partition = by_label(labels, 50, labels_per_client=2, seed=1)  # shards of 10 divide labels of 100
    held = [np.unique(labels[partition.samples_of(client)]) for client in range(50)]
    assert {len(found) for found in held} <= {1, 2}
    assert np.mean([len(found) for found in held]) > 1.5
    assert partition.sizes().tolist() == [20] * 50


def test_iid_owner_of_a_sample_is_uniform():
    runs, num_clients = 600, 3
    owners = [int(np.flatnonzero(iid(6, num_clients, seed=seed).indices == 0)[0]) // 2 for seed in range(runs)]
    found = np.bincount(owners, minlength=num_clients)
    sigma = np.sqrt(runs * (1 / num_clients) * (1 - 1 / num_clients))  # binomial
    assert np.abs(found - runs / num_clients).max() < 5 * sigma


@pytest.mark.parametrize("alpha", [0.1, 1.0, 10.0])
def test_dirichlet_shares_have_the_second_moment_of_the_distribution(alpha):
    num_clients, num_samples, runs = 10, 20_000, 150
    squares = []
    for seed in range(runs):
        sizes = dirichlet(np.zeros(num_samples, int), num_clients, alpha=alpha, seed=seed).sizes()
        squares.append(float(((sizes / num_samples) ** 2).sum()))
    expected = (alpha + 1) / (num_clients * alpha + 1)
    # 5 standard errors, plus 1/N of multinomial noise and n/N for the one sample everyone gets first.
    error = 5 * np.std(squares) / np.sqrt(runs) + 1 / num_samples + 2 * num_clients / num_samples
    assert abs(np.mean(squares) - expected) < error


def test_seeds_decide_everything():
    labels = labels_of(100)
    makers = [
        lambda seed: iid(100, 7, seed=seed),
        lambda seed: dirichlet(labels, 7, alpha=0.5, seed=seed),
        lambda seed: by_label(labels, 7, seed=seed),
    ]
    for make in makers:
        assert np.array_equal(make(3).indices, make(3).indices)
        assert not np.array_equal(make(3).indices, make(4).indices)


def test_samples_per_client_takes_only_that_many():
    partition = iid(1000, 10, samples_per_client=7, seed=2)
    assert partition.sizes().tolist() == [7] * 10
    assert np.unique(partition.indices).size == 70


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "by-label"])
def test_a_million_clients_fit_in_memory_linear_in_samples(kind):
    clients = samples = 10**6
    labels = np.arange(samples, dtype=np.uint8) % 2
    tracemalloc.start()
    try:
        if kind == "iid":
            partition = iid(samples, clients)
        elif kind == "dirichlet":
            partition = dirichlet(labels, clients, alpha=0.5)
        else:
            partition = by_label(labels, clients, labels_per_client=1)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert partition.num_clients == clients and partition.sizes(np.array([0, clients - 1])).min() >= 1
    assert peak < 160 * samples  # a handful of 8-byte vectors, never clients x labels


def test_sizes_and_samples_of_agree():
    partition = Partition.from_lists([[3, 1], [0], [2, 4, 5]])
    assert partition.sizes().tolist() == [2, 1, 3]
    assert partition.sizes(np.array([2, 0])).tolist() == [3, 2]
    assert partition.samples_of(2).tolist() == [2, 4, 5]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: iid(10, 11), "num_clients=11 exceeds the 10 samples to share; .* choose 1..10"),
        (lambda: iid(10, 0), "num_clients=0 is out of range; choose 1.."),
        (lambda: iid(0, 1), "num_samples=0 is out of range; choose an integer >= 1"),
        (lambda: iid(10, 2.5), "num_clients=2.5 is not an integer"),
        (lambda: iid(10, 3, samples_per_client=4), "samples_per_client=4 times num_clients=3 exceeds .* 3"),
        (lambda: iid(10, 3, samples_per_client=0), "samples_per_client=0 is out of range"),
        (lambda: iid(10, 3, seed=-1), "seed=-1 is out of range"),
        (lambda: dirichlet([0, 1], 3, alpha=1.0), "num_clients=3 exceeds the 2 samples"),
        (lambda: dirichlet([0, 1], 2, alpha=0.0), "alpha=0.0 is not allowed; choose a finite number > 0"),
        (lambda: dirichlet([0, 1], 2, alpha=float("nan")), "alpha=nan is not allowed"),
        (lambda: dirichlet([[0, 1]], 1, alpha=1.0), r"targets.shape=\(1, 2\) is not one label per sample"),
        (lambda: dirichlet([[0], [1, 0]], 1, alpha=1.0), "targets.shape=.* is not one label per sample; pass a vector"),
        (lambda: by_label([0, None], 1, labels_per_client=1), "is not one label per sample; pass a vector of whole"),
        (lambda: Partition.from_lists(None), "samples=None is not a list; give a list of sample numbers for each"),
        (lambda: dirichlet([0.5, 1.0], 1, alpha=1.0), "targets hold fractions or NaN, not labels"),
        (lambda: by_label([np.nan, 1.0], 1), "targets hold fractions or NaN, not labels"),
        (lambda: by_label([0, 1, 2], 2), "labels_per_client=2 times num_clients=2 exceeds the 3 samples; .* at most 1"),
        (lambda: by_label([0, 1, 2], 2, labels_per_client=0), "labels_per_client=0 is out of range"),
        (lambda: Partition.from_lists([[0], [], [1]]), "client=1 holds no samples; every client needs at least one"),
        (lambda: Partition.from_lists([]), "do not cut 0 samples into clients"),
        (lambda: Partition.from_lists([[0], [0.5]]), r"client=1 holds .*0.5.*; sample numbers are integers"),
        (lambda: Partition(np.arange(3), np.array([0, 2])), "do not cut 3 samples into clients"),
    ],
)
def test_bad_partitions_are_refused_with_the_allowed_values(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_a_dict_of_clients_is_taken_by_their_numbers():
    partition = Partition.from_lists({1: [3, 4], 0: [0, 1, 2]})
    assert [partition.samples_of(client).tolist() for client in (0, 1)] == [[0, 1, 2], [3, 4]]
    with pytest.raises(ConfigError, match=r"numbered 0\.\.1"):
        Partition.from_lists({"a": [0], "b": [1]})


def test_a_vector_of_owners_is_not_a_list_of_samples():
    with pytest.raises(ConfigError, match=r"client=0 holds .* not a sequence"):
        Partition.from_lists([0, 0, 1, 1])


@pytest.mark.parametrize("kind", [list, lambda values: np.array(values, np.int32), tuple])
def test_numbers_of_any_integer_kind_become_int64(kind):
    partition = Partition(kind([2, 0, 1]), kind([0, 1, 3]))
    assert partition.indices.dtype == partition.offsets.dtype == np.int64 and partition.sizes().tolist() == [1, 2]
    with pytest.raises(ConfigError, match="not a vector of integers"):
        Partition(np.array([0.5]), np.array([0, 1]))


@pytest.mark.parametrize("alpha", [0.0099, 1e-3, 1e-4, 1e-300, 5e-324])
def test_a_tiny_alpha_gives_each_label_to_one_client_and_nobody_nothing(alpha):
    """The shares of a tiny alpha are too small for doubles: all of them zero would mean even clients."""
    labels = np.repeat(np.arange(4), 1000)
    together = []
    for seed in range(10):
        partition = dirichlet(labels, 20, alpha=alpha, seed=seed)
        assert partition.sizes().min() >= 1 and np.array_equal(np.sort(partition.indices), np.arange(4000))
        held = np.array([np.bincount(labels[partition.samples_of(client)], minlength=4) for client in range(20)])
        together += [row.max() / 1000 for row in held.T]
    # The largest share is below 9/10 with a chance of about alpha * 20 * log(9), 0.44 for the largest alpha.
    assert np.mean(np.array(together) > 0.9) > (0.4 if alpha > 1e-3 else 0.85)


def test_the_shares_of_a_small_alpha_have_the_moments_of_the_distribution():
    alpha, count = 0.005, 5
    draws = np.stack([_gammas(np.random.default_rng(seed), alpha, count) for seed in range(4000)])
    squares = ((draws / draws.sum(axis=1, keepdims=True)) ** 2).sum(axis=1)
    expected = (alpha + 1) / (count * alpha + 1)  # n times a (a + 1) / (n a (n a + 1))
    assert abs(squares.mean() - expected) < 5 * squares.std() / 4000**0.5


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("alpha", [1e15, 1e300, 1.7e308, np.float32(1e30)])
def test_a_huge_alpha_gives_even_shares(alpha):
    assert dirichlet(np.zeros(4000), 4, alpha=alpha).sizes().tolist() == pytest.approx([1000] * 4, abs=150)


def test_labels_may_be_a_tensor_that_needs_gradients():
    labels = np.arange(40) % 2
    expected = dirichlet(labels, 4, alpha=0.5)
    found = dirichlet(torch.tensor(labels, dtype=torch.float32, requires_grad=True), 4, alpha=0.5)
    assert np.array_equal(found.indices, expected.indices)
