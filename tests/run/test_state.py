"""RunState: what a run has become comes back as it was, and what cannot be is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedpaq.downlink import Dense
from fedpaq.run.state import RunState
from run.test_recorder import PROBLEM, Recorded, configs_of


def test_a_history_holds_copies_of_the_params():
    run = Recorded(configs_of(2))
    run.play(0.5)
    histories = run.histories()
    run.state.params[:] = 9
    assert [history.params.tolist() for history in histories] == [[0.5] * 3] * 2
    assert histories[1].config["seed"] == 1 and histories[0].num_clients == 4
    assert histories[0].downlink == "dense" and histories[0].aggregation == "mean"


def played(rounds, runs=2, diverge=None, every=1):
    run = Recorded(configs_of(runs), every=every)
    for round in range(rounds):
        run.play(math.nan if round == diverge else 0.1)
    return run


def fresh(runs=2):
    return RunState.begin(Dense().open(range(runs), PROBLEM.num_clients, np.zeros(PROBLEM.dimension, np.float32)))


@pytest.mark.parametrize("every", [0, 1, 2])
@pytest.mark.parametrize(("rounds", "diverge"), [(0, None), (2, None), (2, 1)])
def test_a_state_comes_back_and_goes_on_alike(rounds, diverge, every):
    run = played(rounds, diverge=diverge, every=every)
    again = Recorded(configs_of(2), every=every)
    again.state = fresh()
    again.state.take_up(*run.state.to_parts(), run.settings)
    assert again.state.running().tolist() == run.state.running().tolist()
    for one in (run, again):
        if one.state.running().size:
            one.play(0.05)
    for one, other in zip(run.histories(), again.histories(), strict=True):
        assert one.to_json() == other.to_json()


IMPOSSIBLE = {
    "another number of rounds": ({"rounds_done": 3}, {}, "run 0 has 3 records after 3 rounds"),
    "fewer rounds": ({"rounds_done": 1}, {}, "run 0 has 3 records after 1 rounds"),
    "more rounds than there are": ({"rounds_done": 4}, {}, "rounds_done=4"),
    "a run that is not there": ({"diverged": {"2": "why"}}, {}, "records of 2 runs, not of 2"),
    "a negative run": ({"diverged": {"-1": "why"}}, {}, "records of 2 runs, not of 2"),
    "a run that is not a number": ({"diverged": {"one": "why"}}, {}, "invalid literal"),
    "params of another shape": ({}, {"params": np.zeros((2, 4), np.float32)}, "params"),
    "params of another type": ({}, {"params": np.zeros((2, 3))}, "params"),
    "params that are not finite": ({}, {"params": np.full((2, 3), np.inf, np.float32)}, "not finite"),
}


@pytest.mark.parametrize(("header", "arrays", "why"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_a_state_that_cannot_be_changes_nothing(header, arrays, why):
    run = played(2)
    parts = run.state.to_parts()
    state = fresh()
    with pytest.raises(ValueError, match=why):
        state.take_up({**parts[0], **header}, {**parts[1], **arrays}, run.settings)
    assert state.records == [[], []] and state.rounds_done == 0 and not state.params.any()


def test_records_of_another_number_of_runs_are_refused():
    run = played(2, runs=3)
    header, arrays = run.state.to_parts()
    with pytest.raises(ValueError, match="records of 3 runs, not of 2"):
        fresh().take_up(header, {**arrays, "params": arrays["params"][:2]}, run.settings)
