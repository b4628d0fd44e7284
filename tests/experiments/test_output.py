"""Output: what a reproduction leaves in its folder, and what it reads back."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from fedpaq.experiments import Output, judge
from fedpaq.experiments.curve import curve_settings
from fedpaq.experiments.output import PricedOutput
from fedpaq.experiments.plot import draw
from small_figure import MNIST, SMALL, planted


def stored(folder, figure):
    """A folder with a planted curve for each setting of a figure, under the names a reproduction looks for."""
    output = Output(folder)
    for wanted in curve_settings(figure):
        curve = planted(wanted.setting, 0.9, noise=0.02)
        output.save(figure, dataclasses.replace(curve, settings=wanted))
    return output


def test_a_folder_without_curves_has_no_finished_figure(tmp_path):
    output = Output(tmp_path)
    assert output.finished() == []
    assert output.save_summary() == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "verdicts.json"]


def test_the_summary_is_what_judging_the_stored_curves_gives(tmp_path):
    output = stored(tmp_path, MNIST)
    verdicts = output.save_summary()
    ((figure, curves),) = output.finished()
    assert figure is MNIST and verdicts == judge(MNIST, curves)
    assert json.loads((tmp_path / "verdicts.json").read_text()) == verdicts
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    output.save_summary()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


def test_one_missing_curve_makes_a_figure_unfinished(tmp_path):
    output = stored(tmp_path, MNIST)
    last = curve_settings(MNIST)[-1]
    output.path(MNIST, last).unlink()
    assert output.load(MNIST, last) is None
    assert output.curves(MNIST) is None and output.finished() == []


def test_a_curve_of_other_settings_is_never_taken_for_this_one(tmp_path):
    output = stored(tmp_path, MNIST)
    for wanted in curve_settings(MNIST):
        other = dataclasses.replace(wanted, total_steps=200)
        assert output.load(MNIST, other) is None
        assert wanted.setting.slug in output.path(MNIST, wanted).name


def test_a_curve_read_back_is_the_curve_that_was_stored(tmp_path):
    wanted = curve_settings(SMALL)[0]
    curve = dataclasses.replace(planted(wanted.setting, 0.9), settings=wanted)
    output = Output(tmp_path)
    path = output.save(SMALL, curve)
    found = output.load(SMALL, wanted)
    assert path == output.path(SMALL, wanted) and found.settings == wanted
    assert found.to_json() == curve.to_json() == path.read_text()
    np.testing.assert_array_equal(found.payload_bytes, curve.payload_bytes)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("damage", [lambda t: t[:-30], lambda t: t.replace('"loss"', '"lost"', 1), lambda t: ""])
def test_a_damaged_curve_counts_as_absent(tmp_path, damage):
    wanted = curve_settings(SMALL)[0]
    output = Output(tmp_path)
    path = output.save(SMALL, dataclasses.replace(planted(wanted.setting, 0.9), settings=wanted))
    path.write_text(damage(path.read_text()))
    assert output.load(SMALL, wanted) is None


def test_a_priced_folder_judges_the_same_curves_on_a_dearer_network(tmp_path):
    plain = stored(tmp_path, MNIST)
    priced = PricedOutput(tmp_path, downlink_bandwidth=5e4, round_seconds=1e9)
    ((figure, curves),) = priced.finished()
    assert figure.cost_model == dataclasses.replace(MNIST.cost_model, downlink_bandwidth=5e4, round_seconds=1e9)
    assert list(curves) == list(plain.finished()[0][1])
    prices = {"bits_down_per_gradient_time": 5e4, "gradient_times_per_round": 1e9}
    assert priced.save_summary() == [{**entry, "prices": prices} for entry in judge(figure, curves)]
    seconds = [
        next(iter(found.values())).axis("seconds", "payload", shown.cost_model)[0, 1]
        for shown, found in (plain.finished()[0], (figure, curves))
    ]
    assert seconds[1] == pytest.approx(1e9, rel=0.1) and seconds[0] < 1e8


def test_a_priced_folder_leaves_the_paper_s_results_and_names_its_prices(tmp_path):
    plain = stored(tmp_path, MNIST)
    plain.save_summary()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    priced = PricedOutput(tmp_path, round_seconds=1000.0)
    priced.save_summary()
    paths = priced.save_plots(*priced.finished()[0])
    assert {path: path.read_bytes() for path in before} == before
    assert {path.parent for path in [*paths, priced.report]} == {tmp_path / "priced"}
    words = "priced: 1,000 gradient times per round"
    assert words in priced.report.read_text(encoding="utf-8")
    canvas = draw(*priced.finished()[0], "payload")
    assert words in canvas.get_suptitle() and "priced" not in draw(*plain.finished()[0], "payload").get_suptitle()
    assert "prices" not in plain.save_summary()[0]
