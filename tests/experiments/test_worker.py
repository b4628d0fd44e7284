"""A worker: curves on request, errors as they are, progress in between."""

from __future__ import annotations

import io
import pickle

import pytest

from fedpaq.errors import LostRankError
from fedpaq.experiments import PaperSetting, runner, worker
from fedpaq.experiments.curve import CurveSettings, curve_settings
from fedpaq.experiments.worker import Worker, serve
from small_figure import SMALL


def served(*tasks):
    """What a worker answers to tasks, in this process."""
    asked = io.BytesIO(b"".join(map(pickle.dumps, tasks)))
    results = io.BytesIO()
    serve(asked, results)
    results.seek(0)
    found = []
    while results.tell() < len(results.getvalue()):
        found.append(pickle.load(results))
    return found


def test_a_curve_is_begun_and_then_gets_more_seeds():
    settings = curve_settings(SMALL)[-1]
    *told, (kind, curve) = served((SMALL, settings, None, None))
    assert kind == "curve" and {kind for kind, _ in told} == {"advance"}
    problem = worker._problem(SMALL, None)
    expected = runner.run_curve(problem, settings)
    assert curve.to_json() == expected.to_json()
    *_, (kind, more) = served((SMALL, settings, curve, None))
    assert kind == "curve" and more.to_json() == runner.extended(problem, expected).to_json()


def test_an_error_is_sent_and_the_next_task_is_done():
    bad = CurveSettings(SMALL.problem, PaperSetting(None, 5, 50, "no-such-quantizer"))
    answers = [
        (kind, value)
        for kind, value in served((SMALL, bad, None, None), (SMALL, curve_settings(SMALL)[-1], None, None))
        if kind != "advance"
    ]
    assert [kind for kind, _ in answers] == ["error", "curve"]
    assert "no-such-quantizer" in str(answers[0][1]) and "Traceback" in answers[0][1].__notes__[0]


def test_an_error_that_cannot_be_sent_is_sent_in_words():
    class Local(Exception):
        pass

    found = worker._portable(Local("odd"))
    assert type(found) is RuntimeError and "odd" in str(found)


def test_a_process_has_the_threads_it_was_given_and_loads_fedpaq_from_here(tmp_path, monkeypatch):
    (tmp_path / "pickle.py").write_text("raise SystemExit(7)")  # a file of the user's folder
    monkeypatch.chdir(tmp_path)
    made, done = Worker(1), []
    try:
        settings = curve_settings(SMALL)[-1]
        curve = made.make(SMALL, settings, None, None, done.append)
        assert curve.settings == settings and sum(done) >= runner.expected_gradients(settings)
    finally:
        made.end()
    with pytest.raises((LostRankError, ValueError)):
        made.make(SMALL, settings, None, None, done.append)
