"""Aggregation: the paper's mean by default; liars ruin it and do not ruin the robust two."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import fedpaq
from fedpaq.clients import choose_executor
from fedpaq.errors import ConfigError, DivergedError
from fedpaq.quantizers import RawMessage
from fedpaq.server.aggregation import ClippedMean, Mean, TrimmedMean, find_aggregation, norm_of

SERVERS = [Mean(), ClippedMean(), ClippedMean(max_norm=0.5), TrimmedMean(trim=0.2)]
finite = st.floats(-1e6, 1e6, width=32)
rows_of_values = arrays(np.float32, st.tuples(st.integers(1, 9), st.integers(1, 5)), elements=finite)


def combine(server, rows, cut=None):
    """Return the server's result for the rows of one run, handed over in one or two parts."""
    arrived = server.start(1, rows.shape[1])
    for part in (rows,) if cut is None else (rows[:cut], rows[cut:]):
        if len(part):
            arrived.add([RawMessage(row) for row in part], np.zeros(len(part), np.int64))
    return arrived.mean()[0]


def test_the_mean_is_the_default_and_its_bits_are_the_papers(logistic, config):
    plain = fedpaq.train(logistic, config, quantizer=fedpaq.LowPrecision(levels=1))
    named = fedpaq.train(logistic, config, quantizer=fedpaq.LowPrecision(levels=1), aggregation=Mean())
    assert plain.to_json() == named.to_json() and plain.aggregation == "mean"


@given(rows_of_values)
def test_the_mean_is_the_mean(rows):
    total = np.zeros(rows.shape[1])
    for row in rows:
        total += row.astype(np.float64)
    assert np.array_equal(combine(Mean(), rows), total / len(rows))


@given(rows_of_values)
def test_trimming_agrees_with_sorting_each_coordinate_in_plain_python(rows):
    cut = int(0.2 * len(rows))
    kept = [sorted(column)[cut : len(rows) - cut] for column in rows.T.tolist()]
    expected = [sum(column) / len(column) for column in kept]
    assert np.allclose(combine(TrimmedMean(trim=0.2), rows), expected, rtol=1e-12, atol=1e-6)


@given(rows_of_values)
def test_clipping_agrees_with_scaling_each_row_in_plain_numpy(rows):
    exact = rows.astype(np.float64)
    norms = np.linalg.norm(exact, axis=1)
    for server, limit in ((ClippedMean(), np.median(norms)), (ClippedMean(max_norm=2.0), 2.0)):
        scale = np.where(norms > limit, limit / np.where(norms > 0, norms, 1.0), 1.0)
        assert np.allclose(combine(server, rows), (exact * scale[:, None]).mean(axis=0), rtol=1e-12)


@given(rows_of_values, st.integers(0, 9))
@pytest.mark.parametrize("server", SERVERS, ids=lambda server: server.name)
def test_the_result_does_not_depend_on_how_the_round_was_cut(server, rows, cut):
    assert np.array_equal(combine(server, rows), combine(server, rows, min(cut, len(rows))))


@settings(max_examples=30)
@given(arrays(np.float32, (9, 4), elements=st.floats(-1, 1, width=32)), st.floats(-(2.0**100), 2.0**100, width=32))
def test_one_liar_moves_the_robust_two_by_a_bounded_amount(rows, lie):
    liar = rows.copy()
    liar[0] = lie
    assert np.linalg.norm(combine(ClippedMean(max_norm=1.0), liar)) <= 1.0 + 1e-9
    honest = rows[1:].astype(np.float64)
    trimmed = combine(TrimmedMean(trim=0.2), liar)
    assert (trimmed >= honest.min(axis=0) - 1e-9).all() and (trimmed <= honest.max(axis=0) + 1e-9).all()


def test_runs_of_a_sweep_are_kept_apart():
    rows = np.arange(12, dtype=np.float32).reshape(6, 2)
    for server in SERVERS:
        arrived = server.start(2, 2)
        arrived.add([RawMessage(row) for row in rows], np.array([0, 1, 0, 1, 0, 1]))
        assert np.array_equal(arrived.mean()[0], combine(server, rows[::2]))
        assert np.array_equal(arrived.mean()[1], combine(server, rows[1::2]))


@pytest.mark.parametrize("bucket_size", [None, 3])
def test_quantized_messages_are_clipped_by_what_they_stand_for(bucket_size, rng):
    quantizer = fedpaq.LowPrecision(levels=2, bucket_size=bucket_size)
    message = quantizer.quantize(rng.standard_normal(10).astype(np.float32), key=fedpaq.Key(seed=0))
    assert norm_of(message) == pytest.approx(np.linalg.norm(message.dequantize()), rel=1e-6)
    arrived = ClippedMean(max_norm=0.1).start(1, 10)
    arrived.add([message], np.zeros(1, np.int64))
    assert np.linalg.norm(arrived.mean()) == pytest.approx(0.1, rel=1e-6)


class Hostile:
    """An executor whose client 0 multiplies its update by ``factor``."""

    name = "hostile"

    def __init__(self, factor):
        self.factor = factor

    def local_updates(self, problem, work):
        updates = np.asarray(choose_executor("auto", problem).local_updates(problem, work))
        updates[work.clients == 0] *= np.float32(self.factor)
        return updates


@pytest.mark.parametrize("factor", [100.0, -20.0])
def test_a_tenth_of_liars_ruins_the_mean_but_not_the_robust_two(factor):
    """The sizes: the mean ends above the loss it started from, the robust two near the honest run's."""
    problem = fedpaq.problems.load("mnist-logistic", num_clients=10, seed=0)
    config = fedpaq.FedPAQConfig(clients_per_round=10, local_steps=5, total_steps=50, step_size=0.5)
    fine = fedpaq.LowPrecision(levels=64)

    def loss(server, executor):
        history = fedpaq.train(problem, config, quantizer=fine, aggregation=server, executor=executor, evaluate_every=0)
        return history.final.loss

    honest = loss(Mean(), Hostile(1.0))
    assert honest < 0.06
    assert loss(Mean(), Hostile(factor)) > 5 * honest
    assert loss(ClippedMean(), Hostile(factor)) < 1.3 * honest
    assert loss(TrimmedMean(trim=0.2), Hostile(factor)) < 1.3 * honest


@pytest.mark.parametrize("server", SERVERS, ids=lambda server: server.name)
def test_a_client_whose_update_is_not_finite_ends_the_run(logistic, config, server):
    with pytest.raises(DivergedError):
        fedpaq.train(logistic, config, aggregation=server, executor=Hostile(np.inf))


@pytest.mark.parametrize("trim", [0.0, 0.5, 0.7, -0.1, float("nan"), "x"])
def test_a_share_that_leaves_nothing_is_refused(trim):
    with pytest.raises(ConfigError, match="trim="):
        TrimmedMean(trim=trim)


@pytest.mark.parametrize("max_norm", [0.0, -1.0, float("inf"), float("nan")])
def test_a_limit_that_is_no_limit_is_refused(max_norm):
    with pytest.raises(ConfigError, match="max_norm="):
        ClippedMean(max_norm=max_norm)


def test_names_are_found_or_corrected():
    assert find_aggregation("clipped") == ClippedMean()
    with pytest.raises(ConfigError, match=r"did you mean 'trimmed'"):
        find_aggregation("trimed")


def test_the_history_names_the_aggregation(logistic, config):
    history = fedpaq.train(logistic, config, aggregation=TrimmedMean(trim=0.25))
    assert history.aggregation == "trimmed mean (0.25)"
    assert fedpaq.History.from_json(history.to_json()).aggregation == "trimmed mean (0.25)"


def test_the_texts_that_an_error_advises_are_taken(logistic, config):
    with pytest.raises(ConfigError, match=r"pass one of TrimmedMean\(trim=0.2\), 'trimmed'"):
        fedpaq.train(logistic, config, aggregation=3)
    assert find_aggregation("trimmed") == TrimmedMean(trim=0.2)
