"""A worker: curves on request, errors as they are, progress in between."""

from __future__ import annotations

import io
import json

import pytest

from fedpaq.errors import ConfigError, DatasetError, LostRankError
from fedpaq.experiments import PaperSetting, runner, worker
from fedpaq.experiments.curve import Curve, CurveSettings, curve_settings
from fedpaq.experiments.worker import Worker, received, serve
from small_figure import SMALL


def task(settings, curve=None):
    return {"settings": settings.values, "curve": curve and curve.to_json(), "data_dir": None}


def served(*tasks):
    """What a worker answers to tasks, in this process."""
    asked = io.BytesIO(b"".join(json.dumps(task).encode() + b"\n" for task in tasks))
    results = io.BytesIO()
    serve(asked, results)
    return [json.loads(line) for line in results.getvalue().splitlines()]


def test_a_curve_is_begun_and_then_gets_more_seeds():
    settings = curve_settings(SMALL)[-1]
    *told, answer = served(task(settings))
    assert {kind for each in told for kind in each} == {"advance"}
    problem = worker._problem(settings, None)
    expected = runner.run_curve(problem, settings)
    assert answer == {"curve": expected.to_json()}
    *_, more = served(task(settings, expected))
    assert more == {"curve": runner.extended(problem, expected).to_json()}
    assert Curve.from_json(more["curve"]).settings == settings


def test_an_error_is_sent_and_the_next_task_is_done():
    bad = CurveSettings(SMALL.problem, PaperSetting(None, 5, 50, "no-such-quantizer"))
    first, second = (each for each in served(task(bad), task(curve_settings(SMALL)[-1])) if "advance" not in each)
    assert first["error"] == "ConfigError" and "no-such-quantizer" in first["text"] and "curve" in second
    error = received(**first)
    assert type(error) is ConfigError and "Traceback" in error.__notes__[0]


def test_an_error_of_ours_arrives_as_it_was_and_another_in_words():
    assert type(received("DatasetError", "gone", "")) is DatasetError
    odd = received("Odd", "strange", "where it was")
    assert type(odd) is RuntimeError and str(odd) == "Odd: strange" and odd.__notes__ == ["where it was"]


def test_a_process_has_the_threads_it_was_given_and_loads_fedpaq_from_here(tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text("raise SystemExit(7)")  # a file of the user's folder
    monkeypatch.chdir(tmp_path)
    made, done = Worker(1), []
    try:
        settings = curve_settings(SMALL)[-1]
        curve = made.make(settings, None, None, done.append)
        assert curve.settings == settings and sum(done) >= runner.expected_gradients(settings)
    finally:
        made.end()
    with pytest.raises((LostRankError, ValueError)):
        made.make(settings, None, None, done.append)


def test_a_process_that_goes_while_it_writes_has_gone(tmp_path, monkeypatch):
    torn = tmp_path / "torn.py"
    torn.write_text("import sys; sys.stdin.readline(); sys.stdout.write('{\"adv'); sys.stdout.flush()")
    begin = worker.subprocess.Popen
    monkeypatch.setattr(worker.subprocess, "Popen", lambda command, **rest: begin([command[0], str(torn)], **rest))
    made = Worker(1)
    try:
        with pytest.raises(LostRankError, match=r"exit code 0: .* has gone"):
            made.make(curve_settings(SMALL)[-1], None, None, print)
    finally:
        made.end()
