"""Meter: what a round costs, when it is evaluated, who has diverged, and a state that comes back as it was."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedpaq
from fedpaq import codec
from fedpaq.errors import ConfigError, DivergedError
from fedpaq.hardware.ranks import Ranks
from fedpaq.problems import Partition, synthetic_quadratic
from fedpaq.quantizers import Identity, LowPrecision
from fedpaq.run.history import History, Record, from_columns, to_columns
from fedpaq.run.recorder import Meter

QUICK = settings(max_examples=40, deadline=None)
PROBLEM = synthetic_quadratic(num_clients=4, dimension=3, samples_per_client=5)
COST = fedpaq.CostModel(bandwidth=1000.0, shift=0.25, scale=4.0)


def configs_of(runs=1, rounds=3, **changes):
    values = {"clients_per_round": 2, "local_steps": 2, "total_steps": 2 * rounds, "step_size": 0.1}
    return [fedpaq.FedPAQConfig(**{**values, "seed": seed, **changes}) for seed in range(runs)]


def make(configs, *, problem=PROBLEM, quantizer=None, cost=COST, every=1, callback=None, ranks=None):
    return Meter(
        problem,
        configs,
        quantizer or Identity(),
        cost,
        "dense",
        "encoded",
        every,
        callback,
        ranks=ranks or Ranks(),
    )


def params_of(runs, value=0.0):
    return np.full((runs, PROBLEM.dimension), value, np.float32)


def play(meter, runs, round, value, sent=(10, 20, 30)):
    rows = np.array(runs, np.int64)
    meter.round_done(
        round, rows, params_of(len(runs), value), np.tile([0, 3], (len(runs), 1)), np.array(sent[: len(runs)])
    )


def test_a_record_by_hand():
    meter = make(configs_of(batch_size=5))
    meter.start(params_of(1))
    play(meter, [0], 0, 0.5, sent=(40,))
    play(meter, [0], 1, 0.25, sent=(2,))
    (history,) = meter.histories(params_of(1, 0.25))
    first, second, third = history.records
    assert (first.round, first.steps, first.payload_bytes, first.upload_bits, first.seconds) == (
        0,
        0,
        0,
        0,
        0.0,
    )
    assert (second.steps, third.steps, second.payload_bytes, third.payload_bytes) == (2, 4, 40, 42)
    assert (second.upload_bits, third.upload_bits) == (320, 336)
    computing = [COST.computation_seconds(0, k, np.array([0, 3]), np.array([10, 10])) for k in (0, 1)]
    assert second.computation_seconds == computing[0]
    assert third.computation_seconds == pytest.approx(sum(computing), rel=1e-15)
    assert third.seconds - third.computation_seconds == pytest.approx(336 / 1000.0)
    assert third.loss == PROBLEM.evaluate(params_of(1, 0.25)[0]).loss


def test_full_batches_are_charged_by_what_each_client_holds():
    uneven = synthetic_quadratic(num_clients=1, dimension=3, samples_per_client=7)
    uneven.partition = Partition.from_lists([[0], [1, 2], [3], [4, 5, 6]])
    meter = make(configs_of(batch_size=None), problem=uneven)
    meter.start(params_of(1))
    play(meter, [0], 0, 0.5)
    (history,) = meter.histories(params_of(1))
    expected = COST.computation_seconds(0, 0, np.array([0, 3]), np.array([2 * 1, 2 * 3]))
    assert history.final.computation_seconds == expected


@pytest.mark.parametrize("accounting", ["fixed-width", "elias"])
@pytest.mark.parametrize("quantizer", [Identity(), LowPrecision(3)])
def test_other_accountings_charge_by_formula_and_keep_the_real_bytes(accounting, quantizer):
    cost = fedpaq.CostModel(bandwidth=1000.0, accounting=accounting)
    meter = make(configs_of(), quantizer=quantizer, cost=cost)
    meter.start(params_of(1))
    play(meter, [0], 0, 0.5, sent=(17,))
    (history,) = meter.histories(params_of(1))
    each = codec.message_bits(3, getattr(quantizer, "levels", None), accounting)
    assert history.final.upload_bits == 2 * each and history.final.payload_bytes == 17
    assert history.cost_model["accounting"] == accounting and history.quantizer == quantizer.name


@QUICK
@given(st.integers(0, 6), st.integers(1, 6))
def test_rounds_are_evaluated_every_so_often_and_at_the_end(every, rounds):
    meter = make(configs_of(rounds=rounds), every=every)
    meter.start(params_of(1))
    for round in range(rounds):
        play(meter, [0], round, 0.1)
    (history,) = meter.histories(params_of(1))
    evaluated = {record.round for record in history.records if record.loss is not None}
    expected = {k for k in range(rounds + 1) if every and k % every == 0} | {rounds}
    assert evaluated == expected and len(history.records) == rounds + 1


@pytest.mark.parametrize("every", [-1, 1.5, True, None])
def test_an_impossible_rhythm_is_refused(every):
    with pytest.raises(ConfigError, match=r"^evaluate_every=.*; choose an integer >= 0$"):
        make(configs_of(), every=every)


def test_the_callback_sees_each_run_s_record_and_params():
    seen = []
    meter = make(configs_of(2), callback=lambda run, record, params: seen.append((run, record, params.copy())))
    meter.start(params_of(2))
    play(meter, [0, 1], 0, 0.5)
    assert [(run, record.round) for run, record, _ in seen] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert [params.tolist() for *_, params in seen] == [[0.0] * 3] * 2 + [[0.5] * 3] * 2
    assert [record.payload_bytes for _, record, _ in seen] == [0, 0, 10, 20]
    assert [record.upload_bits for _, record, _ in seen] == [0, 0, 80, 160]


def test_only_the_first_rank_speaks():
    seen = []
    meter = make(configs_of(), callback=lambda *call: seen.append(call), every=0, ranks=Ranks(1, 2))
    meter.start(params_of(1))
    play(meter, [0], 0, 0.5)
    assert seen == [] and meter.running().tolist() == [0]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("every", [0, 1])
def test_a_run_whose_params_are_not_finite_ends_and_the_others_go_on(value, every):
    meter = make(configs_of(3), every=every)
    meter.start(params_of(3))
    params = params_of(3, 0.5)
    params[1, 2] = value
    people = np.tile([0, 3], (3, 1))
    meter.round_done(0, np.arange(3), params, people, np.array([10, 20, 30]))
    assert meter.running().tolist() == [0, 2]
    play(meter, [0, 2], 1, 0.4, sent=(1, 2))
    first, second, third = meter.histories(params_of(3))
    assert [len(history.records) for history in (first, second, third)] == [3, 1, 3]
    assert third.final.payload_bytes == 32 and first.final.payload_bytes == 11
    assert first.diverged is None and second.diverged.startswith(
        "round=1: the params or the loss are no longer"
    )
    with pytest.raises(DivergedError, match="round=1"):
        second.raise_if_diverged()
    assert third.raise_if_diverged() is third


def test_a_diverged_run_says_its_last_loss_and_what_to_lower():
    meter = make(configs_of(step_size=lambda round: 0.5 + round), every=2)
    meter.start(params_of(1))
    play(meter, [0], 0, 0.5)
    play(meter, [0], 1, math.nan)
    (history,) = meter.histories(params_of(1))
    assert history.diverged == (
        f"round=2: the params or the loss are no longer finite (last loss={history.records[0].loss:.4g}); "
        "lower step_size=1.5 or local_steps=2, or raise levels"
    )


def test_a_run_that_was_never_evaluated_says_so():
    meter = make(configs_of(), every=0)
    meter.start(params_of(1))
    play(meter, [0], 0, math.nan)
    (history,) = meter.histories(params_of(1))
    assert "(loss not evaluated before)" in history.diverged


def test_a_history_holds_copies_of_the_params():
    meter = make(configs_of(2))
    meter.start(params_of(2))
    final = params_of(2, 0.5)
    histories = meter.histories(final)
    final[:] = 9
    assert [history.params.tolist() for history in histories] == [[0.5] * 3] * 2
    assert histories[1].config["seed"] == 1 and histories[0].num_clients == 4


def state_of(rounds, runs=2, diverge=None, every=1):
    meter = make(configs_of(runs), every=every)
    meter.start(params_of(runs))
    for round in range(rounds):
        play(meter, meter.running().tolist(), round, math.nan if round == diverge else 0.1)
    return meter, *meter.state()


@pytest.mark.parametrize("every", [0, 1, 2])
@pytest.mark.parametrize(("rounds", "diverge"), [(0, None), (2, None), (2, 1)])
def test_a_state_restores_the_same_histories_and_goes_on_alike(rounds, diverge, every):
    meter, diverged, columns = state_of(rounds, diverge=diverge, every=every)
    again = make(configs_of(2), every=every)
    again.restore(rounds, diverged, columns)
    assert again.running().tolist() == meter.running().tolist()
    for one in (meter, again):
        if one.running().size:
            play(one, [0, 1], rounds, 0.05)
    for one, other in zip(meter.histories(params_of(2)), again.histories(params_of(2)), strict=True):
        assert one.to_json() == other.to_json()


IMPOSSIBLE = {
    "another number of rounds": (3, {}, "run 0 has 3 records after 3 rounds"),
    "fewer rounds": (1, {}, "run 0 has 3 records after 1 rounds"),
    "a run that is not there": (2, {"2": "why"}, "records of 2 runs, not of 2"),
    "a negative run": (2, {"-1": "why"}, "records of 2 runs, not of 2"),
    "a run that is no number": (2, {"one": "why"}, "invalid literal"),
}


@pytest.mark.parametrize(("rounds", "diverged", "why"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_a_state_that_cannot_be_changes_nothing(rounds, diverged, why):
    _, _, columns = state_of(2)
    meter = make(configs_of(2))
    meter.start(params_of(2))
    with pytest.raises(ValueError, match=why):
        meter.restore(rounds, diverged, columns)
    assert [len(history.records) for history in meter.histories(params_of(2))] == [1, 1]


def test_records_of_another_number_of_runs_are_refused():
    _, diverged, columns = state_of(2, runs=3)
    with pytest.raises(ValueError, match="records of 3 runs, not of 2"):
        make(configs_of(2)).restore(2, diverged, columns)


amounts = st.integers(0, 2**53)
seconds = st.floats(0, 1e300)
maybe = st.none() | st.floats(allow_nan=False, allow_infinity=False)
rows = st.tuples(maybe, maybe, amounts, amounts, seconds, seconds)
runs_of_rows = st.lists(st.lists(rows, min_size=1, max_size=4), min_size=1, max_size=4)


def records_of(run, local_steps):
    return [
        Record(
            round=k,
            steps=k * local_steps,
            loss=loss,
            accuracy=accuracy,
            payload_bytes=sent,
            upload_bits=bits,
            computation_seconds=computing,
            seconds=total,
        )
        for k, (loss, accuracy, sent, bits, computing, total) in enumerate(run)
    ]


@QUICK
@given(runs_of_rows, st.integers(1, 9))
def test_records_survive_their_columns(runs, local_steps):
    records = [records_of(run, local_steps) for run in runs]
    columns = to_columns(records)
    assert columns["records_per_run"].tolist() == [len(run) for run in runs]
    assert from_columns(columns, local_steps) == records


@QUICK
@given(runs_of_rows)
def test_records_survive_json(runs):
    history = History(
        problem="p",
        dimension=2,
        num_clients=1,
        config={},
        quantizer="q",
        cost_model={},
        executor="e",
        records=records_of(runs[0], 3),
        params=np.array([np.nan, -0.0], np.float32),
        payload_sizes="estimated",
    )
    again = History.from_json(history.to_json())
    assert again.records == history.records and again.payload_sizes == "estimated"
    assert again.params.tobytes() == history.params.tobytes()
    assert again.to_json() == history.to_json()


def columns_of_one_record(**changes):
    columns = to_columns([records_of([(0.5, None, 1, 8, 0.0, 0.0)], 1)])
    return {**columns, **changes}


COLUMNS = {
    "no runs' worth of records": {"records_per_run": np.array([0])},
    "a negative count": {"records_per_run": np.array([-1, 2])},
    "counts of another type": {"records_per_run": np.array([1], np.int32)},
    "counts in two dimensions": {"records_per_run": np.array([[1]])},
    "counts whose sum wraps around to what is there": {"records_per_run": np.array([2**62] * 4 + [1])},
    "a column of another type": {"loss": np.array([0.5], np.float32)},
    "a column too long": {"seconds": np.zeros(2)},
    "an infinite loss": {"loss": np.array([np.inf])},
    "an infinite time": {"seconds": np.array([-np.inf])},
    "a time that is not known": {"seconds": np.array([np.nan])},
}


@pytest.mark.parametrize("changes", COLUMNS.values(), ids=COLUMNS)
def test_columns_that_no_run_wrote_are_a_value_error(changes):
    assert from_columns(columns_of_one_record(), 1)[0][0].loss == 0.5
    with pytest.raises(ValueError):
        from_columns(columns_of_one_record(**changes), 1)


def test_a_missing_column_is_a_key_error():
    columns = columns_of_one_record()
    del columns["accuracy"]
    with pytest.raises(KeyError, match="accuracy"):
        from_columns(columns, 1)
