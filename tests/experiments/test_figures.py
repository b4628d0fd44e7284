"""The figures as data: what the paper's text fixes."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedpaq
from fedpaq import problems
from fedpaq.experiments import FIGURES, PaperSetting

ALL = list(FIGURES.values())


@pytest.mark.parametrize("figure", ALL, ids=lambda figure: figure.name)
def test_each_figure_has_the_papers_four_panels(figure):
    assert [panel.name for panel in figure.panels] == ["levels", "clients", "steps", "methods"]
    assert [len(panel.curves) for panel in figure.panels] == [4, 4, 6, 3]
    assert {setting.levels for setting in figure.panel("levels").curves.values()} == {1, 5, 10, None}
    assert {setting.clients_per_round for setting in figure.panel("clients").curves.values()} == {5, 10, 25, 50}
    assert {setting.local_steps for setting in figure.panel("steps").curves.values()} == {1, 2, 5, 10, 20, 50}


def test_the_logistic_figure_fixes_what_section_5_1_fixes():
    figure = FIGURES["mnist"]
    assert figure.ratio == 100
    assert all((s.local_steps, s.clients_per_round) == (5, 25) for s in figure.panel("levels").curves.values())
    assert all((s.levels, s.local_steps) == (1, 5) for s in figure.panel("clients").curves.values())
    methods = figure.panel("methods").curves
    assert methods == {
        "FedPAQ": PaperSetting(1, 50, 2),
        "FedAvg": PaperSetting(None, 50, 2),
        "QSGD": PaperSetting(1, 50, 1),
    }


@pytest.mark.parametrize("figure", ALL[1:], ids=lambda figure: figure.name)
def test_the_network_figures_fix_what_section_5_2_fixes(figure):
    assert figure.ratio == 1000
    assert all((s.local_steps, s.clients_per_round) == (2, 25) for s in figure.panel("levels").curves.values())
    assert all((s.levels, s.local_steps) == (1, 2) for s in figure.panel("clients").curves.values())
    methods = figure.panel("methods").curves
    assert methods == {
        "FedPAQ": PaperSetting(1, 20, 10),
        "FedAvg": PaperSetting(None, 20, 10),
        "QSGD": PaperSetting(1, 50, 1),
    }


def test_a_setting_shared_by_panels_is_run_once():
    assert all(len(figure.settings) == len(set(figure.settings)) == 15 for figure in ALL)


def test_every_figure_names_a_known_problem():
    assert {figure.problem for figure in ALL} <= set(problems.names())


def test_quantizers_follow_from_the_levels():
    assert fedpaq.quantizers.parse(PaperSetting(None, 5, 10).quantizer) == fedpaq.Identity()
    assert fedpaq.quantizers.parse(PaperSetting(7, 5, 10).quantizer) == fedpaq.LowPrecision(7)
    assert PaperSetting(None, 5, 10, "rotated:0.5").quantizer == "rotated:0.5"


def test_a_setting_of_the_paper_s_says_nothing_of_other_quantizers():
    assert PaperSetting(7, 5, 10).values == {"levels": 7, "clients_per_round": 5, "local_steps": 10}
    other = PaperSetting(None, 5, 10, "rotated:0.5")
    assert other.values["other"] == "rotated:0.5" and PaperSetting(**other.values) == other


@given(st.sampled_from([1, 2, 5, 10, None]), st.integers(1, 50), st.sampled_from([1, 2, 5, 10, 20, 50, 100]))
@settings(max_examples=40, deadline=None)
def test_slugs_tell_settings_apart_and_rounds_times_steps_are_t(levels, clients, steps):
    setting = PaperSetting(levels, clients, steps)
    found = re.fullmatch(r"(none|s(\d+))-r(\d+)-tau(\d+)", setting.slug)
    assert (found[2] and int(found[2]), int(found[3]), int(found[4])) == (levels, clients, steps)
    assert setting.num_rounds * steps == 100
