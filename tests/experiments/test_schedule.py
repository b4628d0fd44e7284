"""Several processes make the curves that one makes, to the bit; however they end, nothing is left behind."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
from functools import partial

import psutil
import pytest

from fedpaq.errors import ConfigError, DatasetError, LostRankError
from fedpaq.experiments import Figure, Output, Panel, PaperSetting, run_figure, runner, schedule
from fedpaq.experiments.curve import curve_settings
from fedpaq.experiments.schedule import ahead, most_processes
from fedpaq.experiments.worker import Worker
from small_figure import SMALL

LACKING = Figure("lacking", "No data", "Nowhere", "cifar100-mlp", 1000.0, SMALL.panels)


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def silent(figure):
    return lambda setting, gradients: None


def workers_of(process):
    """The processes that make curves for another."""
    return [each for each in psutil.Process(process).children() if "fedpaq.experiments.worker" in each.cmdline()]


@pytest.fixture
def no_worker(monkeypatch):
    monkeypatch.setattr(schedule, "Worker", None)  # starting one would fail


@pytest.fixture(scope="module")
def in_one_process(tmp_path_factory):
    folder, done = tmp_path_factory.mktemp("one-process"), []
    run_figure(SMALL, Output(folder), progress=lambda _, gradients: done.append(gradients))
    return folder, sum(done)


def test_two_processes_make_the_same_files_and_progress(tmp_path, in_one_process):
    done = []
    other = dataclasses.replace(SMALL, name="other")

    def progress(figure):
        return lambda setting, gradients: done.append((figure.name, setting, gradients))

    yielded = []
    for figure in ahead([SMALL, other], Output(tmp_path), progress, processes=2):
        yielded.append(figure.name)
        assert Output(tmp_path).curves(figure) is not None
    assert sorted(yielded) == ["other", "small"]
    assert workers_of(os.getpid()) == []
    expected, gradients = contents(in_one_process[0]), in_one_process[1]
    again = {name.replace("small", "other"): content for name, content in expected.items()}
    assert contents(tmp_path) == {**expected, **again}
    for name in yielded:
        assert sum(each for figure, _, each in done if figure == name) == gradients
        assert {setting for figure, setting, _ in done if figure == name} == set(SMALL.settings)


def test_one_process_or_nothing_to_do_starts_no_other(tmp_path, in_one_process, no_worker):
    assert list(ahead([SMALL, LACKING], Output(tmp_path), silent)) == [SMALL, LACKING]
    assert list(ahead([SMALL], Output(in_one_process[0]), silent, processes=2)) == [SMALL]


def test_missing_data_is_left_to_be_told_and_the_other_figures_are_made(tmp_path, in_one_process, monkeypatch):
    load = runner.load_problem

    def refuse(figure, data_dir):
        if figure is LACKING:
            raise DatasetError("not here")
        return load(figure, data_dir)

    monkeypatch.setattr(runner, "load_problem", refuse)
    shutil.copytree(in_one_process[0], tmp_path, dirs_exist_ok=True)
    Output(tmp_path).path(SMALL, curve_settings(SMALL)[1]).unlink()
    assert list(ahead([SMALL, LACKING], Output(tmp_path), silent, processes=2)) == [LACKING, SMALL]
    assert contents(tmp_path) == contents(in_one_process[0])


def test_seeds_are_added_as_one_process_adds_them(tmp_path, in_one_process, monkeypatch):
    first, second, _ = SMALL.settings

    def still_open(figure, curves):
        return {first, second} if curves[first].num_seeds < 20 else {second} if curves[second].num_seeds < 30 else set()

    monkeypatch.setattr(runner, "open_settings", still_open)
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        shutil.copytree(in_one_process[0], folder)
    run_figure(SMALL, Output(folders[0]))
    assert list(ahead([SMALL], Output(folders[1]), silent, processes=2)) == [SMALL]
    assert [curve.num_seeds for curve in Output(folders[1]).curves(SMALL).values()] == [20, 30, 10]
    assert contents(folders[0]) == contents(folders[1])


def test_an_error_ends_all_processes_and_keeps_what_is_finished(tmp_path):
    wrong = Panel("wrong", "wrong", "fixed", {"wrong": PaperSetting(None, 5, 50, "rotated:bits=-1")})
    figure = dataclasses.replace(SMALL, panels=(*SMALL.panels, wrong))
    with pytest.raises(ConfigError, match="bits=-1") as caught:
        list(ahead([figure], Output(tmp_path), silent, processes=2))
    assert "worker.py" in caught.value.__notes__[0]  # where it was raised, for --debug
    assert workers_of(os.getpid()) == []
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".json"]


def test_a_process_that_is_killed_is_named_and_the_others_end(tmp_path, in_one_process, monkeypatch):
    begun = []

    class Doomed(Worker):
        def make(self, settings, curve, data_dir, advance):
            if not begun:
                begun.append(settings.setting)
                self._process.kill()
            return super().make(settings, curve, data_dir, advance)

    monkeypatch.setattr(schedule, "Worker", Doomed)
    with pytest.raises(LostRankError, match=r"exit code -9: .* synthetic-logistic, \S+ has gone; finished curves"):
        list(ahead([SMALL], Output(tmp_path), silent, processes=2))
    assert workers_of(os.getpid()) == []
    monkeypatch.undo()
    list(ahead([SMALL], Output(tmp_path), silent, processes=2))
    assert contents(tmp_path) == contents(in_one_process[0])


def test_a_caller_that_stops_ends_the_processes(tmp_path):
    other = dataclasses.replace(SMALL, name="other")
    figures = ahead([SMALL, other], Output(tmp_path), silent, processes=2)
    next(figures)
    assert len(workers_of(os.getpid())) == 2
    figures.close()
    assert workers_of(os.getpid()) == []


def test_there_is_a_process_for_each_core_up_to_four_and_one_for_a_gpu(monkeypatch):
    for cores, expected in ((1, 1), (2, 2), (64, 4)):
        monkeypatch.setattr(schedule, "cores", lambda cores=cores: cores)
        assert most_processes("cpu") == expected
        assert most_processes("cuda") == 1


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)],
    ids=["SIGINT", "SIGTERM", "SIGKILL"],
)
def test_a_signal_to_the_command_ends_every_process_and_leaves_whole_files(number, code, tmp_path, request):
    # A shell that starts the tests in the background has them, and what they start, ignore SIGINT.
    request.addfinalizer(partial(signal.signal, signal.SIGINT, signal.getsignal(signal.SIGINT)))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    command = [sys.executable, "-m", "fedpaq", "reproduce", "mnist", "-o", str(tmp_path)]
    environment = {**os.environ, "NUMBA_NUM_THREADS": "2"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        while not process.stderr.readline().startswith("mnist: "):  # a curve was begun
            assert process.poll() is None
        found = workers_of(process.pid)
        process.send_signal(number)
        assert process.wait(30) == code
        process.stderr.close()
    assert len(found) == 2
    _, alive = psutil.wait_procs(found, timeout=30)
    assert alive == []
    assert all(path.suffix == ".json" for path in tmp_path.rglob("*") if path.is_file())
