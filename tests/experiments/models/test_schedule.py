"""Schedule: all trials once, in order, in this process or in several; what is there is not done again."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from fedpaq.errors import ConfigError
from fedpaq.experiments.models import schedule
from fedpaq.experiments.models.arms import FLOAT32
from fedpaq.experiments.models.schedule import missing, run_study, work
from fedpaq.experiments.models.trial import Run, Tuning
from small_study import SMALL


@pytest.fixture
def performed(monkeypatch):
    """What was performed, in order; nothing is really run."""
    done = []

    def tune(self, bench):
        done.append(("tuning", self.task.name, self.arm.quantizer))
        return {"step_size": 0.5, "tried": []}

    def run(self, bench):
        done.append(("run", self.task.name, self.arm.slug, self.seed, self.step_size))
        return {"measure": [1.0]}

    monkeypatch.setattr(Tuning, "perform", tune)
    monkeypatch.setattr(Run, "perform", run)
    return done


def test_tunings_come_first_and_arms_that_differ_in_downloads_share_one(performed, tmp_path):
    other = replace(SMALL, name="other", tuned_as=SMALL, options={**SMALL.options, "width": 16})
    ticks = []
    assert run_study([SMALL, other], tmp_path, progress=lambda *what: ticks.append(what))
    assert performed[:2] == [("tuning", "small", "none"), ("tuning", "small", "rotated:0.03")]
    runs = performed[2:]
    assert [each[1] for each in runs] == ["small"] * 6 + ["other"] * 6
    assert {each[4] for each in runs} == {0.5} and len(set(runs)) == 12
    assert ticks[-1][1] == ticks[-1][2] == work([SMALL, other], tmp_path)[0]
    performed.clear()
    assert run_study([SMALL, other], tmp_path) and performed == []


def test_after_the_time_is_up_nothing_is_begun_and_the_next_call_goes_on(performed, tmp_path, monkeypatch):
    now = iter(range(0, 10_000, 10))
    monkeypatch.setattr(schedule.time, "monotonic", lambda: next(now))
    assert run_study([SMALL], tmp_path, seconds=45) is False
    begun = len(performed)
    assert 0 < begun < 8
    assert run_study([SMALL], tmp_path) is True
    assert len(performed) == len(set(performed)) == 8


def test_a_damaged_file_is_run_again(performed, tmp_path):
    run_study([SMALL], tmp_path)
    (path,) = tmp_path.glob("small/none-seed1-*.json")
    path.write_text(path.read_text()[:20])
    assert [(trial.arm, trial.seed) for trial in missing([SMALL], tmp_path)] == [(FLOAT32, 1)]
    performed.clear()
    run_study([SMALL], tmp_path)
    assert len(performed) == 1 and json.loads(path.read_text())["measure"] == [1.0]


def test_several_processes_find_what_one_finds(tmp_path):
    task = replace(SMALL, arms=(FLOAT32,), seeds=(0, 1), rounds=1, step_sizes=(1e-3,))
    alone, together = tmp_path / "alone", tmp_path / "together"
    assert run_study([task], alone) and run_study([task], together, workers=2)
    files = [path.relative_to(alone) for path in alone.rglob("*.json")]
    assert len(files) == 3
    for path in files:
        first, second = (json.loads((folder / path).read_text()) for folder in (alone, together))
        assert {**first, "seconds": 0} == {**second, "seconds": 0}


def test_what_fails_in_a_process_is_told_and_what_was_done_stays(tmp_path):
    task = replace(SMALL, arms=(FLOAT32,), options={"no_such": 1})
    with pytest.raises(TypeError, match="no_such"):
        run_study([task], tmp_path, workers=2)
    assert list(tmp_path.rglob("*")) == []


def test_a_device_that_is_not_there_is_an_error_before_anything_is_run(tmp_path):
    with pytest.raises(ConfigError):
        run_study([SMALL], tmp_path, device="no-such-device")
