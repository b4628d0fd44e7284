"""Trial: the rule of tuning, and what a run keeps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedpaq.experiments.models.arms import CODED, FLOAT32, PLAIN
from fedpaq.experiments.models.trial import Bench, Run, Tuning, best, from_json, key_of, outwards, to_json
from small_study import SMALL


def test_the_grid_grows_until_its_best_is_inside(monkeypatch):
    tuning, asked = Tuning(SMALL, FLOAT32), []

    def tried(self, bench, step_sizes):
        asked.append(tuple(step_sizes))
        return {eta: abs(eta - 9e-3) for eta in step_sizes}

    monkeypatch.setattr(Tuning, "_tried", tried)
    found = tuning.perform(None)
    assert asked == [(5e-4, 1e-3, 2e-3), (4e-3,), (8e-3,), (0.016,)]
    assert found["step_size"] == 8e-3 and [each["step_size"] for each in found["tried"]][-1] == 0.016


def test_a_grid_is_not_widened_for_ever(monkeypatch):
    monkeypatch.setattr(Tuning, "_tried", lambda self, bench, sizes: dict.fromkeys(sizes))
    assert len(Tuning(SMALL, FLOAT32).perform(None)["tried"]) == 3 + 8


def test_what_diverged_is_never_the_best():
    assert best({0.1: 2.0, 0.2: None}) == 0.1
    assert best({0.2: 1.0, 0.1: 1.0}) == 0.1
    assert outwards({0.1: None, 0.2: 1.0, 0.4: None}) == ()


@pytest.fixture(scope="module")
def bench():
    return Bench("cpu")


def test_a_run_keeps_its_measure_and_its_bytes(bench):
    run = Run(SMALL, CODED[2], 0, 1e-3)
    found = run.perform(bench)
    assert found["rounds"] == [0, 1, 2, 3] and found["diverged"] is None
    assert len(found["measure"]) == len(found["payload_bytes"]) == len(found["download_bytes"]) == 4
    assert 7 < found["measure"][0] < 9  # bits of a byte of which nothing is known
    assert 0 == found["payload_bytes"][0] < found["payload_bytes"][1] < found["payload_bytes"][3]
    dense = Run(SMALL, PLAIN[5], 0, 1e-3).perform(bench)
    assert dense["download_bytes"][3] > 3 * found["download_bytes"][3]
    assert from_json(to_json(run, found))["measure"] == found["measure"]
    again = run.perform(bench)
    assert {**again, "seconds": 0} == {**found, "seconds": 0}


def test_tuning_runs_every_step_size(bench):
    found = Tuning(replace(SMALL, step_sizes=(1e-4, 1e-3, 1e-2)), PLAIN[5]).perform(bench)
    assert len(found["tried"]) >= 3 and all(each["loss"] > 0 for each in found["tried"])


def test_a_file_is_named_by_all_that_it_depends_on(tmp_path):
    run = Run(SMALL, FLOAT32, 0, 1e-3)
    others = [
        replace(run, seed=1), replace(run, step_size=2e-3), replace(run, arm=PLAIN[5]), replace(run, arm=CODED[2]),
        replace(run, task=replace(SMALL, rounds=4)), replace(run, task=replace(SMALL, options={"width": 16})),
    ]  # fmt: skip
    assert len({each.path(tmp_path) for each in (run, *others)}) == 7
    assert key_of(run.values) == key_of(replace(run).values)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": "another"}'])
def test_a_damaged_file_is_as_good_as_none(text):
    assert from_json(text) is None
