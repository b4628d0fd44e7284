"""LocalWork: the round's jobs as arrays, drawn client by client, however they are cut, shared or weighed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import fedpaq
from fedpaq.clients import EXECUTORS, Sequential, Vectorised, draw_participants, local_work, train_one_client
from fedpaq.clients.vectorised import COPIES, reason_not_vectorisable
from fedpaq.clients.work import BYTES_A_COORDINATE, BYTES_A_SAMPLE, LocalWork, draw_samples, whole_clients
from fedpaq.errors import ConfigError
from fedpaq.hardware.ranks import Ranks
from fedpaq.kernels.threads import cores
from fedpaq.problems import Partition, Problem
from fedpaq.randomness import Key, minibatches, sample_without_replacement

QUICK = settings(max_examples=10, deadline=None)
UNEVEN = Partition.from_lists([[0, 1], [2], [3, 4], [5, 6, 7, 8], [9]])


def make_problem(partition=UNEVEN, samples=10):
    generator = np.random.default_rng(3)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
    return Problem(
        model=model,
        loss=nn.functional.mse_loss,
        inputs=generator.normal(size=(samples, 3)),
        targets=generator.normal(size=(samples, 1)),
        partition=partition,
        regularization=0.1,
    )


PROBLEM = make_problem()


def make_config(**changes):
    values = {"clients_per_round": 3, "local_steps": 2, "total_steps": 4, "batch_size": 2, "step_size": 0.1}
    return fedpaq.FedPAQConfig(**{**values, **changes})


def works(configs, round=1, participants=None, params=None, **cuts):
    if participants is None:
        participants = draw_participants(PROBLEM, configs, round)
    if params is None:
        params = np.tile(PROBLEM.initial_params, (len(configs), 1))
    return list(local_work(PROBLEM, configs, round, params, participants, **cuts))


def joined(parts, name):
    return np.concatenate([np.asarray(getattr(part, name)) for part in parts])


def test_participants_are_those_of_each_run_s_own_stream_in_ascending_order():
    configs = [make_config(seed=seed) for seed in (4, 9, 4)]
    drawn = draw_participants(PROBLEM, configs, 7)
    for row, config in zip(drawn, configs, strict=True):
        alone = sample_without_replacement(Key(seed=config.seed, round=7), 5, 3)
        assert row.tolist() == alone.tolist() == sorted(set(alone.tolist()))
    assert drawn[0].tolist() == drawn[2].tolist()


def test_everyone_takes_part_where_a_round_asks_for_all():
    assert draw_participants(PROBLEM, [make_config(clients_per_round=5)], 3).tolist() == [[0, 1, 2, 3, 4]]


def test_jobs_come_run_after_run_in_client_order():
    configs = [make_config(seed=1, step_size=0.1), make_config(seed=2, step_size=0.4)]
    (work,) = works(configs)
    assert len(work) == 6 and work.run_of.tolist() == [0, 0, 0, 1, 1, 1]
    assert work.clients.reshape(2, 3).tolist() == draw_participants(PROBLEM, configs, 1).tolist()
    assert work.seeds.tolist() == [1, 1, 1, 2, 2, 2] and work.seeds.dtype == np.uint64
    assert work.step_sizes.tolist() == [np.float32(0.1), np.float32(0.4)]
    assert work.samples.shape == (6, 2, 2)
    assert list(work.keys()) == [
        Key(seed=seed, round=1, client=client)
        for seed, client in zip(work.seeds.tolist(), work.clients.tolist(), strict=True)
    ]


def test_the_largest_seed_stays_itself():
    (work,) = works([make_config(seed=2**64 - 1)])
    assert work.keys()[0].seed == 2**64 - 1


def test_a_schedule_is_asked_for_this_round_only():
    asked = []
    config = make_config(step_size=lambda round: asked.append(round) or 1.0 / (1 + round))
    (work,) = works([config], round=3)
    assert asked == [3] and work.step_sizes.tolist() == [0.25]


def test_samples_are_positions_of_the_stream_in_the_client_s_own_list():
    seeds, clients = np.array([5, 6, 5], np.uint64), np.array([3, 0, 1])
    drawn = draw_samples(UNEVEN, seeds, 2, clients, local_steps=4, batch_size=3)
    positions = minibatches(seeds, 2, clients, UNEVEN.sizes(clients), 12).reshape(3, 4, 3)
    for job, client in enumerate(clients.tolist()):
        own = UNEVEN.samples_of(client)
        assert drawn[job].tolist() == own[positions[job]].tolist()
        assert set(drawn[job].ravel().tolist()) <= set(own.tolist())


def test_samples_of_a_client_are_drawn_evenly_from_its_own():
    steps, batch = 500, 16
    drawn = draw_samples(UNEVEN, np.array([1], np.uint64), 0, np.array([3]), steps, batch)
    counts = np.bincount(drawn.ravel(), minlength=10)
    n, p = steps * batch, 1 / 4
    # Binomial(n, 1/4): 5 standard errors of the count.
    assert np.abs(counts[5:9] - n * p).max() <= 5 * np.sqrt(n * p * (1 - p))
    assert counts.sum() == counts[5:9].sum()


def test_a_client_s_draws_do_not_depend_on_who_else_takes_part():
    alone = draw_samples(UNEVEN, np.array([8], np.uint64), 4, np.array([3]), 2, 2)
    among = draw_samples(UNEVEN, np.full(5, 8, np.uint64), 4, np.arange(5), 2, 2)
    assert np.array_equal(alone[0], among[3])


@QUICK
@given(st.integers(1, 400), st.integers(1, 3), st.none() | st.integers(1, 3))
def test_the_work_is_the_same_however_it_is_cut(budget, runs, batch_size):
    configs = [make_config(seed=seed, batch_size=batch_size, clients_per_round=4) for seed in range(runs)]
    whole, cut = works(configs), works(configs, memory_budget=budget)
    for name in ("run_of", "clients", "seeds"):
        assert joined(whole, name).tolist() == joined(cut, name).tolist()
    of_job = [[part.samples[job].tolist() for part in parts for job in range(len(part))] for parts in (whole, cut)]
    assert of_job[0] == of_job[1]
    samples = configs[0].local_steps * (batch_size or PROBLEM.partition.sizes().max())
    at_once = max(1, budget // (BYTES_A_COORDINATE * PROBLEM.dimension + BYTES_A_SAMPLE * samples))
    at_once -= at_once % cores() if at_once > cores() else 0  # as many for every core
    assert all(len(part) <= at_once for part in cut)
    if batch_size is not None:  # as few parts as fit
        assert len(cut) == -(-4 * runs // at_once)


@QUICK
@given(st.integers(1, 6), st.integers(1, 4))
def test_shares_of_ranks_put_together_are_the_whole_work(size, runs):
    configs = [make_config(seed=seed) for seed in range(runs)]
    parts = [part for rank in range(size) for part in works(configs, share=Ranks(rank, size).share)]
    (whole,) = works(configs)
    for name in ("run_of", "clients", "seeds", "samples"):
        assert joined(parts, name).tolist() == getattr(whole, name).tolist()


def test_a_share_of_nothing_is_no_work():
    assert works([make_config()], share=lambda jobs: slice(2, 2)) == []


def test_full_batches_are_cut_where_the_size_changes_and_nowhere_else():
    parts = works([make_config(batch_size=None, clients_per_round=5)], participants=np.array([[0, 2, 3, 1, 4]]))
    assert [part.clients.tolist() for part in parts] == [[0, 2], [3], [1, 4]]
    assert [part.samples.shape for part in parts] == [(2, 2, 2), (1, 2, 4), (2, 2, 1)]
    assert parts[1].samples.tolist() == [[[5, 6, 7, 8]] * 2]


def test_a_full_batch_is_every_sample_once_in_every_step():
    rows = whole_clients(UNEVEN, np.array([0, 2]), local_steps=3)
    assert rows.tolist() == [[[0, 1]] * 3, [[3, 4]] * 3]


@pytest.mark.parametrize("size", [1, 2, 4, 6, 99])
def test_chunks_cover_the_jobs_in_order(size):
    (work,) = works([make_config(seed=seed) for seed in (1, 2)])
    covered = []
    for jobs, part in work.chunks(size):
        assert 1 <= len(part) <= size and part.clients.tolist() == work.clients[jobs].tolist()
        assert part.params is work.params and part.step_sizes is work.step_sizes  # per run, not per job
        covered += list(range(jobs.start, jobs.stop))
    assert covered == list(range(6))


def test_a_part_by_a_mask_keeps_rows_together():
    (work,) = works([make_config(seed=seed) for seed in (1, 2)])
    odd = work.part(np.arange(6) % 2 == 1)
    assert odd.run_of.tolist() == [0, 1, 1] and odd.samples.tolist() == work.samples[1::2].tolist()


def test_tensors_are_what_the_arrays_hold():
    (work,) = works([make_config()])
    for tensor, values in zip(
        work.tensors(torch.device("cpu")), (work.params, work.run_of, work.step_sizes, work.samples), strict=True
    ):
        assert np.array_equal(tensor.numpy(), values)


EXACT = pytest.mark.parametrize("name", EXECUTORS)


@EXACT
def test_updates_are_one_row_a_job_of_float32(name):
    (work,) = works([make_config(seed=seed) for seed in (1, 2)])
    updates = np.asarray(EXECUTORS[name]().local_updates(PROBLEM, work))
    assert updates.shape == (6, 4) and updates.dtype == np.float32


@EXACT
def test_the_order_of_jobs_does_not_change_an_update(name):
    (work,) = works([make_config(seed=seed, step_size=0.1 * (1 + seed)) for seed in (0, 1)])
    order = np.array([5, 0, 3, 1, 4, 2])
    executor = EXECUTORS[name]()
    straight = np.asarray(executor.local_updates(PROBLEM, work))
    shuffled = np.asarray(executor.local_updates(PROBLEM, work.part(order)))
    np.testing.assert_allclose(shuffled, straight[order], rtol=1e-6, atol=1e-7)


@EXACT
def test_params_may_be_strided_and_are_left_alone(name):
    params = np.tile(PROBLEM.initial_params, (2, 1))
    wide = np.repeat(params, 2, axis=1)[:, ::2]
    for values in (params, wide):
        before = values.copy()
        (work,) = works([make_config(seed=1), make_config(seed=2)], params=values)
        found = np.asarray(EXECUTORS[name]().local_updates(PROBLEM, work))
        expected = np.asarray(Sequential().local_updates(PROBLEM, work))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        assert np.array_equal(values, before)


@EXACT
def test_one_full_step_is_the_client_s_gradient_by_hand(name):
    config = make_config(local_steps=1, total_steps=1, batch_size=None, clients_per_round=1, step_size=0.5)
    (work,) = works([config], participants=np.array([[3]]))
    x, own = PROBLEM.initial_params.astype(np.float64), UNEVEN.samples_of(3)
    inputs = np.c_[PROBLEM.inputs.numpy()[own], np.ones(4)].astype(np.float64)
    residuals = inputs @ x - PROBLEM.targets.numpy()[own, 0]
    gradient = 2 * inputs.T @ residuals / 4 + 0.1 * x
    found = np.asarray(EXECUTORS[name]().local_updates(PROBLEM, work))
    np.testing.assert_allclose(found[0], -0.5 * gradient, rtol=1e-5, atol=1e-6)


def test_one_client_takes_the_steps_it_takes_in_a_run():
    config = make_config(seed=5)
    params = np.linspace(-1, 1, 4).astype(np.float32)
    (work,) = works([config], round=1, participants=np.array([[0, 3, 4]]), params=params[None])
    updates = Sequential().local_updates(PROBLEM, work).numpy()
    for row, client in enumerate((0, 3, 4)):
        trained = train_one_client(PROBLEM, config, round=1, client=client, params=params)
        assert np.array_equal(trained - params, updates[row]) and trained.dtype == np.float32


def test_one_client_takes_params_of_any_kind_and_leaves_them_alone():
    config, params = make_config(), np.linspace(-1, 1, 4).astype(np.float32)
    expected = train_one_client(PROBLEM, config, round=0, client=3, params=params.copy())
    frozen = np.frombuffer(params.tobytes(), np.float32)  # as bytes from a network are: read-only
    strided = np.repeat(params, 2)[::2]
    for values in (frozen, strided, params.tolist(), params.astype(np.float64), torch.from_numpy(params)):
        trained = train_one_client(PROBLEM, config, round=0, client=3, params=values)
        assert np.array_equal(trained, expected)
    assert np.array_equal(params, np.linspace(-1, 1, 4).astype(np.float32))


@pytest.mark.parametrize("shape", [(), (3,), (5,), (0,), (1, 4), (2, 2)])
def test_params_that_do_not_fit_the_model_are_refused(shape):
    with pytest.raises(ConfigError) as caught:
        train_one_client(PROBLEM, make_config(), round=0, client=0, params=np.zeros(shape))
    assert str(caught.value) == f"params.shape={shape} does not fit the model; it has dimension=4"


@pytest.mark.parametrize("client", [-1, 5, 1.0, None])
def test_a_client_that_is_not_there_is_refused(client):
    with pytest.raises(ConfigError, match=r"^client=.*choose 0\.\.4$"):
        train_one_client(PROBLEM, make_config(), round=0, client=client, params=PROBLEM.initial_params)


@pytest.mark.parametrize(("budget", "jobs"), [(1, 1), (COPIES * 4 * 4 + 3 * 3 * 4 * 2, 1), (400, 2), (None, 6)])
def test_vectorised_chunks_fit_the_memory_they_are_given(budget, jobs):
    (work,) = works([make_config(seed=seed) for seed in (1, 2)])
    at_once = Vectorised(memory_budget=budget)._jobs_per_chunk(PROBLEM, work)
    assert min(at_once, len(work)) == jobs
    assert Vectorised(chunk_size=4, memory_budget=budget)._jobs_per_chunk(PROBLEM, work) == 4


def test_a_problem_of_one_sample_can_be_tried_with_vmap():
    assert reason_not_vectorisable(make_problem(Partition.from_lists([[0]]), samples=1)) is None


def test_work_without_jobs_has_no_length():
    (work,) = works([make_config()])
    nobody = work.part(slice(0, 0))
    assert isinstance(nobody, LocalWork) and len(nobody) == 0 and list(nobody.keys()) == []
    assert list(nobody.chunks(3)) == []
