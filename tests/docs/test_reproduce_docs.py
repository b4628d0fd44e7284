"""The published results: complete, drawn from the committed curves, and what the code gives today."""

from __future__ import annotations

import importlib.util
import json

import numpy as np
import pytest
from typer.testing import CliRunner

import fedpaq
from fedpaq.cli import app
from fedpaq.experiments import CLAIMS, FIGURES, Curve, judge
from repository import ROOT

PUBLISHED = ROOT / "docs" / "figures" / "paper"


def published(figure):
    """The committed curves of a figure by setting, whatever version of the package made them."""
    curves = [Curve.from_json(path.read_text()) for path in sorted(PUBLISHED.glob(f"curves/{figure}/*.json"))]
    return {curve.settings.setting: curve for curve in curves}


def run_by_hand(curve, path):
    """Run seed 0 of a curve through ``fedpaq run`` and return its history."""
    setting = curve.settings.setting
    arguments = ["run", curve.settings.problem, "--no-compare", "--seed", "0", "--output", str(path)]
    arguments += [
        "--clients-per-round",
        str(setting.clients_per_round),
        "--local-steps",
        str(setting.local_steps),
    ]
    arguments += ["--levels", str(setting.levels or 0), "--step-size", str(curve.step_size)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return fedpaq.History.load(path)


@pytest.mark.parametrize("slug", ["s1-r25-tau5", "none-r25-tau5", "s10-r25-tau5", "s1-r50-tau2"])
def test_a_published_curve_is_what_fedpaq_run_gives(slug, tmp_path):
    (curve,) = [curve for setting, curve in published("mnist").items() if setting.slug == slug]
    records = run_by_hand(curve, tmp_path / "run.json").records
    np.testing.assert_allclose(curve.loss[0], [record.loss for record in records], rtol=2e-5)
    np.testing.assert_array_equal(curve.payload_bytes[0], [record.payload_bytes for record in records])
    np.testing.assert_allclose(
        curve.computation_seconds[0], [record.computation_seconds for record in records], rtol=1e-5
    )


@pytest.mark.parametrize("figure", FIGURES.values(), ids=lambda figure: figure.name)
def test_published_verdicts_follow_from_the_published_curves(figure):
    curves = published(figure.name)
    assert set(curves) == set(figure.settings)
    verdicts = json.loads((PUBLISHED / "verdicts.json").read_text(encoding="utf-8"))
    assert [entry for entry in verdicts if entry["figure"] == figure.name] == judge(figure, curves)


def test_every_claim_has_a_published_verdict_for_each_of_its_figures():
    verdicts = json.loads((PUBLISHED / "verdicts.json").read_text(encoding="utf-8"))
    found = {(entry["claim"], entry["figure"]) for entry in verdicts}
    assert found == {(claim.name, figure) for claim in CLAIMS for figure in claim.figures}


def test_the_page_is_generated_from_the_published_results():
    spec = importlib.util.spec_from_file_location("reproduce_docs", ROOT / "scripts" / "reproduce_docs.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    page = script.PAGE.read_text(encoding="utf-8")
    assert script.filled(page, script.sections()) == page


def test_every_published_figure_has_its_pictures_in_a_few_megabytes():
    for figure in FIGURES:
        for accounting in ("payload", "fixed-width"):
            assert (PUBLISHED / f"{figure}-{accounting}.png").exists()
    assert sum(path.stat().st_size for path in PUBLISHED.rglob("*") if path.is_file()) < 5.5e6
