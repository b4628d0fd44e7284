"""The published results: complete, drawn from the committed curves, and what the code gives today."""

from __future__ import annotations

import importlib.util
import json

import numpy as np
import pytest
from typer.testing import CliRunner

import fedpaq
from fedpaq import CostModel
from fedpaq.cli import app
from fedpaq.experiments import CLAIMS, FIGURES, PLOTS, Curve, judge, judge_rates
from fedpaq.experiments.curve import ACCOUNTINGS, curve_settings
from fedpaq.experiments.rates import LABELS, MATCHED
from repository import ROOT
from small_figure import MNIST, planted, planted_mnist

SLUGS = ["s1-r25-tau5", "none-r25-tau5", "s10-r25-tau5", "s1-r50-tau2", "rotated-payload_bytes-64-r25-tau5"]
PUBLISHED = ROOT / "docs" / "figures" / "paper"


@pytest.fixture(scope="module")
def script():
    """scripts/reproduce_docs.py as a module."""
    spec = importlib.util.spec_from_file_location("reproduce_docs", ROOT / "scripts" / "reproduce_docs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def published(figure):
    """The committed curves of a figure by setting, whatever version of the package made them."""
    paths = sorted(PUBLISHED.glob(f"curves/{figure.folder}/*.json"))
    curves = sorted((Curve.from_json(path.read_text()) for path in paths), key=lambda curve: curve.num_seeds)
    if figure.beside:  # it was fixed with five seeds
        curves = [curve for curve in curves if len(curve.settings.seeds) == 5]
    for rule in (curve_settings(figure)[0].rule, "area"):  # the second is that of figures not run again
        found = {c.settings.setting: c for c in curves if c.settings.rule == rule}
        if set(figure.settings) <= set(found):
            return {setting: found[setting] for setting in figure.settings}
    return {}


def run_by_hand(curve, path):
    """Run seed 0 of a curve through ``fedpaq run`` and return its history."""
    setting = curve.settings.setting
    arguments = ["run", curve.settings.problem, "--no-compare", "--seed", "0", "--output", str(path)]
    arguments += ["--clients-per-round", str(setting.clients_per_round), "--local-steps", str(setting.local_steps)]
    arguments += ["--quantizer", setting.quantizer, "--step-size", str(curve.step_size)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return fedpaq.History.load(path)


@pytest.mark.parametrize("slug", SLUGS)
def test_a_published_curve_is_what_fedpaq_run_gives(slug, tmp_path):
    both = published(FIGURES["mnist"]) | published(PLOTS["rates-mnist"])
    (curve,) = [curve for setting, curve in both.items() if setting.slug == slug]
    records = run_by_hand(curve, tmp_path / "run.json").records
    np.testing.assert_allclose(curve.loss[0], [record.loss for record in records], rtol=2e-5)
    np.testing.assert_array_equal(curve.payload_bytes[0], [record.payload_bytes for record in records])
    np.testing.assert_allclose(
        curve.computation_seconds[0], [record.computation_seconds for record in records], rtol=1e-5
    )


@pytest.mark.parametrize("figure", FIGURES.values(), ids=lambda figure: figure.name)
def test_published_verdicts_follow_from_the_published_curves(figure):
    curves = published(figure)
    assert set(curves) == set(figure.settings)
    verdicts = json.loads((PUBLISHED / "verdicts.json").read_text(encoding="utf-8"))
    assert [entry for entry in verdicts if entry["figure"] == figure.name] == judge(figure, curves)


def test_every_claim_has_a_published_verdict_for_each_of_its_figures():
    verdicts = json.loads((PUBLISHED / "verdicts.json").read_text(encoding="utf-8"))
    found = {(entry["claim"], entry["figure"]) for entry in verdicts}
    assert found == {(claim.name, figure) for claim in CLAIMS for figure in claim.figures}


@pytest.mark.parametrize("plot", PLOTS.values(), ids=lambda plot: plot.name)
def test_verdicts_on_rates_follow_from_the_published_curves(plot):
    curves = published(plot)
    assert set(curves) == set(plot.settings)
    verdicts = json.loads((PUBLISHED / "rates-verdicts.json").read_text(encoding="utf-8"))
    assert [entry for entry in verdicts if entry["figure"] == plot.name] == judge_rates(plot, curves)


@pytest.mark.parametrize("plot", PLOTS.values(), ids=lambda plot: plot.name)
def test_rotated_never_sent_more_than_the_levels_it_stands_beside(plot):
    curves, labels = published(plot), plot.panels[0].curves
    for levels, label in zip(MATCHED, LABELS, strict=False):
        theirs, ours = curves[labels[levels]].payload_bytes, curves[labels[label]].payload_bytes
        assert (ours[:, -1] <= theirs[:, -1]).all()


def test_the_page_is_generated_from_the_published_results(script):
    page = script.PAGE.read_text(encoding="utf-8")
    assert script.filled(page, script.sections()) == page


def test_every_published_figure_has_its_pictures_in_a_few_megabytes():
    for figure in FIGURES:
        for accounting in ACCOUNTINGS:
            assert (PUBLISHED / f"{figure}-{accounting}.png").exists()
    assert (PUBLISHED / "rates.png").exists()
    assert sum(path.stat().st_size for path in PUBLISHED.rglob("*") if path.is_file()) < 9e6


@pytest.fixture(scope="module")
def curves():
    return planted_mnist()


@pytest.fixture(scope="module")
def verdicts(curves):
    return judge(MNIST, curves)


def test_scores_add_up_to_the_number_of_claims(script, verdicts):
    rows = [row.split("|")[1:-1] for row in script.score(verdicts).splitlines()[2:]]
    assert len(rows) == len(ACCOUNTINGS)
    for row, accounting in zip(rows, ACCOUNTINGS, strict=True):
        counts = [int(cell) for cell in row[1:]]
        assert sum(counts) == len(verdicts)
        found = [entry["judged"][accounting]["verdict"] for entry in verdicts]
        assert counts == [found.count(name) for name in ("holds", "does not hold", "tie", "undecided")]


def test_the_table_of_verdicts_has_five_cells_for_each_claim(script, verdicts):
    rows = script.verdict_table(verdicts).splitlines()
    assert len(rows) == 2 + len(verdicts)
    for row, entry in zip(rows[2:], verdicts, strict=True):
        cells = row.split(" | ")
        assert len(cells) == 5 and entry["criterion"] == cells[1]
        for cell, accounting in zip(cells[2:], ACCOUNTINGS, strict=True):
            judged = entry["judged"][accounting]
            assert f"**{judged['verdict']}**" in cell and script.MARKS[judged["verdict"]] in cell
            assert ("<br>" in cell) == (judged["decisive"] is not None)


@pytest.mark.parametrize(
    ("old", "tuned", "new", "causes"),
    [
        ("holds", "undecided", "holds", ""),  # it has not moved
        ("undecided", "undecided", "holds", "seeds"),
        ("undecided", "tie", "holds", "seeds"),
        ("undecided", "holds", "holds", "step sizes"),
        ("holds", "undecided", "does not hold", "step sizes, seeds"),
        ("undecided", "undecided", "tie", "called a tie"),
        ("does not hold", "undecided", "tie", "step sizes, called a tie"),
    ],
)
def test_what_moved_a_verdict_is_found_from_its_first_five_seeds(script, old, tuned, new, causes):
    assert script._causes(*(dict.fromkeys(ACCOUNTINGS, verdict) for verdict in (old, tuned, new))) == causes


def test_the_table_of_levels_has_each_levels_ratio(script, verdicts):
    rows = [row.strip("| ").split(" | ") for row in script.level_table(verdicts).splitlines()[2:]]
    assert len(rows) == len(ACCOUNTINGS) * (3 + 2)  # each s against none; FedAvg and QSGD against FedPAQ
    assert all(len(row) == 2 + 5 for row in rows)
    (entry,) = [entry for entry in verdicts if entry["claim"] == "fedpaq-beats-benchmarks"]
    ratios = entry["judged"]["elias"]["ratios"]
    (found,) = [row for row in rows if row[:2] == ["time of QSGD / FedPAQ", "Elias bound"]]
    expected = [ratio for ratio in ratios if "QSGD" in ratio["what"]]
    for cell, ratio in zip(found[2:], expected, strict=True):
        mark = "✓" if ratio["low"] > 1 else "✗" if ratio["high"] < 1 else "?"
        assert cell == f"{mark} {ratio['value']:.3g}"


def test_the_table_of_curves_says_what_each_reached_and_cost(script, curves):
    rows = script.curve_table(MNIST, curves).splitlines()[2:]
    model = CostModel.from_ratio(MNIST.ratio)
    for row, (setting, curve) in zip(rows, curves.items(), strict=True):
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert cells[:3] == [setting.slug, "5", "0.1"]
        assert cells[3].startswith(f"{curve.loss[:, -1].mean():.4g} ± ")
        assert cells[4] == ("4,000" if setting.levels is None else "40")  # as planted
        seconds = [curve.axis("seconds", count, model)[:, -1].mean() for count in ACCOUNTINGS]
        assert cells[5:] == [f"{value:,.0f}" for value in seconds]


def test_the_table_of_rates_says_what_each_curve_sent_and_reached(script):
    plot = PLOTS["rates-mnist"]
    curves = {setting: planted(setting, 0.9) for setting in plot.settings}
    rows = script.rate_table(plot, curves).splitlines()[2:]
    for row, (label, setting) in zip(rows, plot.panels[0].curves.items(), strict=True):
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert cells[:3] == [label, "4,000" if setting.quantizer == "none" else "40", "0.1"]  # as planted
        assert cells[3].startswith(f"{curves[setting].loss[:, -1].mean():.4g} ± ")
