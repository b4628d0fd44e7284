"""The sixth figure as data: its rates follow from the published curves by the rule that was fixed."""

from __future__ import annotations

import math

import pytest

import fedpaq
from fedpaq.errors import ConfigError
from fedpaq.experiments import FIGURES, PLOTS, Curve, choose
from fedpaq.experiments.curve import curve_settings
from fedpaq.experiments.rates import LABELS, MATCHED, RATES
from repository import ROOT

PUBLISHED = ROOT / "docs" / "figures" / "paper" / "curves"


def published(figure):
    curves = [Curve.from_json(path.read_text()) for path in sorted((PUBLISHED / figure).glob("*.json"))]
    curves.sort(key=lambda curve: -len(curve.payload_bytes))  # the rates were read from the fewest seeds, before others
    rule = curve_settings(PLOTS[f"rates-{figure}"])[0].rule  # the paper's figure has curves tuned otherwise
    return {curve.settings.setting: curve for curve in curves if curve.settings.rule == rule}


def least_mean_payload(curve):
    """Bytes an upload, on the seed that has fewest."""
    setting = curve.settings.setting
    return curve.payload_bytes[:, -1].min() / (setting.num_rounds * setting.clients_per_round)


@pytest.mark.parametrize("name", FIGURES)
def test_rates_are_the_bytes_of_the_published_levels_and_twice_the_last(name):
    curves, levels = published(name), FIGURES[name].panel("levels").curves
    matched = [math.floor(least_mean_payload(curves[levels[label]])) for label in MATCHED]
    assert RATES[name] == (*matched, 2 * matched[-1])


@pytest.mark.parametrize("plot", PLOTS.values(), ids=lambda plot: plot.name)
def test_a_plot_has_the_levels_of_its_figure_and_rotated_at_four_rates(plot):
    (panel,) = plot.panels
    figure = FIGURES[plot.folder]
    levels = figure.panel("levels").curves
    assert (plot.problem, plot.ratio) == (figure.problem, figure.ratio)
    assert list(panel.curves) == [*levels, *LABELS]
    assert {label: panel.curves[label] for label in levels} == levels
    for label, size in zip(LABELS, RATES[plot.folder], strict=True):
        setting = panel.curves[label]
        assert fedpaq.quantizers.parse(setting.quantizer) == fedpaq.Rotated(payload_bytes=size)
        fixed = levels["s = 1"]
        assert (setting.clients_per_round, setting.local_steps) == (fixed.clients_per_round, fixed.local_steps)


def test_rates_are_run_only_where_asked_for():
    assert [figure.name for figure in choose(["rates"])] == list(PLOTS)
    assert [figure.name for figure in choose(["rates", "fashion"])] == ["fashion", *PLOTS]


def test_an_unknown_figure_is_named_with_the_nearest_known_one():
    with pytest.raises(ConfigError, match="did you mean 'cifar100'"):
        choose(["cifar1000"])


@pytest.mark.parametrize("names", [["all"], ["all", "mnist"], ["fashion", "all"]])
def test_all_means_every_figure_of_the_paper_once_in_its_order(names):
    assert [figure.name for figure in choose(names)] == list(FIGURES)
    assert [figure.name for figure in choose([*names, "rates"])] == [*FIGURES, *PLOTS]


def test_a_figure_named_twice_is_run_once():
    assert [figure.name for figure in choose(["mnist", "mnist"])] == ["mnist"]
    assert choose([]) == []
