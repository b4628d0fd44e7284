"""Running a figure: finished curves are kept, interruptions change nothing."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from fedpaq.experiments import Output, PaperSetting, run_figure, runner
from fedpaq.experiments.curve import CurveSettings, curve_settings
from fedpaq.experiments.output import PricedOutput
from fedpaq.experiments.runner import expected_gradients
from repository import TESTS
from small_figure import SMALL


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.rglob("*.json"))}


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    """The folder of one run without interruption, the progress it reported, and its curves."""
    folder, done = tmp_path_factory.mktemp("one-go"), []
    curves = run_figure(SMALL, Output(folder), progress=lambda _, gradients: done.append(gradients))
    return folder, done, curves


@pytest.fixture
def in_one_go(whole_run):
    return contents(whole_run[0])


def test_an_interrupted_run_continues_to_the_same_files(tmp_path, in_one_go, monkeypatch):
    real, calls = runner.run_curve, []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(runner, "run_curve", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_figure(SMALL, Output(tmp_path))
    assert len(contents(tmp_path)) == 1
    assert Output(tmp_path).curves(SMALL) is None
    run_figure(SMALL, Output(tmp_path))
    assert len(calls) == 4  # three curves, the second begun twice, the first not recomputed
    assert contents(tmp_path) == in_one_go


def test_a_run_killed_at_any_moment_continues_to_the_same_files(tmp_path, in_one_go):
    script = textwrap.dedent(
        f"""
        import sys; sys.path.insert(0, {str(TESTS)!r})
        from pathlib import Path
        from fedpaq.experiments import Output, run_figure
        from small_figure import SMALL
        run_figure(SMALL, Output(Path({str(tmp_path)!r})), progress=lambda *_: print("step", flush=True))
        """
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    for _ in range(400):  # somewhere inside the first curves
        process.stdout.readline()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert contents(tmp_path) != in_one_go
    run_figure(SMALL, Output(tmp_path))
    assert contents(tmp_path) == in_one_go


def test_a_damaged_curve_is_computed_again(tmp_path, whole_run, in_one_go):
    shutil.copytree(whole_run[0], tmp_path, dirs_exist_ok=True)
    store = Output(tmp_path)
    store.path(SMALL, curve_settings(SMALL)[-1]).write_text("{")
    run_figure(SMALL, store)
    assert contents(tmp_path) == in_one_go


def test_no_temporary_file_is_left_behind(whole_run):
    assert [path for path in whole_run[0].rglob("*") if path.name.startswith(".")] == []


def test_a_curve_just_run_is_the_curve_that_is_read_back(whole_run):
    folder, _, curves = whole_run
    stored = Output(folder).curves(SMALL)
    assert list(stored) == list(curves)
    for one, other in zip(curves.values(), stored.values(), strict=True):
        for name in ("loss", "accuracy", "payload_bytes", "computation_seconds"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name), strict=True)
        for name in ("settings", "tuning", "step_size", "dimension"):
            assert getattr(one, name) == getattr(other, name)


def test_prices_add_no_seeds_to_the_paper_s_curves(tmp_path, whole_run, monkeypatch):
    shutil.copytree(whole_run[0], tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(runner, "open_settings", lambda figure, curves: set(SMALL.settings))
    priced = PricedOutput(tmp_path, round_seconds=1000.0)
    curves = run_figure(priced.price(SMALL), priced)
    assert [curve.num_seeds for curve in curves.values()] == [10, 10, 10]


def test_curves_of_open_rows_get_more_seeds_while_there_are_more(tmp_path, whole_run, monkeypatch):
    shutil.copytree(whole_run[0], tmp_path, dirs_exist_ok=True)
    first, second, _ = SMALL.settings
    asked = []

    def still_open(figure, curves):
        asked.append({setting: curve.num_seeds for setting, curve in curves.items()})
        return {first, second} if curves[first].num_seeds < 20 else {second}  # never settled

    monkeypatch.setattr(runner, "open_settings", still_open)
    curves = run_figure(SMALL, Output(tmp_path))
    most = len(curves[second].settings.seeds)
    assert [curve.num_seeds for curve in curves.values()] == [20, most, 10]
    expected = [[10, 10], [20, 20], *([20, seeds] for seeds in range(30, most + 1, 10))]
    assert [[seen[first], seen[second]] for seen in asked] == expected
    np.testing.assert_array_equal(curves[second].first(10).loss, whole_run[2][second].loss)
    stored = Output(tmp_path).curves(SMALL)[second]
    assert stored.num_seeds == most and stored.to_json() == curves[second].to_json()
    all_at_once = dataclasses.replace(stored.settings, seeds_at_once=most)
    empty = dataclasses.replace(stored.first(0), settings=all_at_once)
    problem = runner.load_problem(SMALL, None)
    np.testing.assert_allclose(runner.extended(problem, empty).loss, stored.loss, rtol=2e-6)


def test_progress_adds_up_to_what_was_announced(whole_run):
    announced = sum(runner.expected_gradients(settings) for settings in curve_settings(SMALL))
    assert announced <= sum(whole_run[1]) <= 1.8 * announced  # more only where a grid had to be widened


def test_the_announced_work_is_the_trials_one_by_one():
    chosen = CurveSettings("p", PaperSetting(1, 5, 10), tuning_seeds=(7, 8, 9), seeds=(0, 1))
    trials = 3 * 2  # coarse grid on the first two tuning seeds
    trials += 4 * 3 + 1  # fine grid on all three; the centre only on the one it has not seen
    trials += 2  # the curve itself
    assert expected_gradients(chosen) == trials * 100 * 5
