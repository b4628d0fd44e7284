"""Histories as columns and as JSON: every record survives, and what no run wrote is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpaq.run.history import History, Record, from_columns, to_columns

QUICK = settings(max_examples=40, deadline=None)

amounts = st.integers(0, 2**53)
seconds = st.floats(0, 1e300)
maybe = st.none() | st.floats(allow_nan=False, allow_infinity=False)
rows = st.tuples(maybe, maybe, amounts, amounts, amounts, seconds, seconds)
runs_of_rows = st.lists(st.lists(rows, min_size=1, max_size=4), min_size=1, max_size=4)


def records_of(run, local_steps):
    return [
        Record(
            round=k,
            steps=k * local_steps,
            loss=loss,
            accuracy=accuracy,
            payload_bytes=sent,
            download_bytes=received,
            upload_bits=bits,
            computation_seconds=computing,
            seconds=total,
        )
        for k, (loss, accuracy, sent, received, bits, computing, total) in enumerate(run)
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
        payload_size_source="estimated",
    )
    again = History.from_json(history.to_json())
    assert again.records == history.records and again.payload_size_source == "estimated"
    assert again.params.tobytes() == history.params.tobytes()
    assert again.to_json() == history.to_json()


def columns_of_one_record(**changes):
    columns = to_columns([records_of([(0.5, None, 1, 9, 8, 0.0, 0.0)], 1)])
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
