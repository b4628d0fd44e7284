"""fedpaq reproduce: what it writes, what it says, and what it does without data."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from fedpaq.cli import app
from fedpaq.experiments import FIGURES, PLOTS, PaperSetting, figures
from fedpaq.experiments.curve import ACCOUNTINGS
from fedpaq.experiments.rates import LABELS
from small_figure import SMALL


@pytest.fixture
def small_paper():
    """A paper of two figures: a small one that runs, and one whose data is nowhere."""
    lacking = figures.Figure("lacking", "No data", "Nowhere", "cifar100-mlp", 1000.0, SMALL.panels)
    paper, plots = dict(FIGURES), dict(PLOTS)
    FIGURES.clear()
    FIGURES.update(lacking=lacking, small=SMALL)
    PLOTS.clear()
    yield
    FIGURES.clear()  # and back in the paper's order, which single entries put back would not keep
    FIGURES.update(paper)
    PLOTS.update(plots)


@pytest.fixture
def no_data(monkeypatch, tmp_path):
    """No dataset here, and none to be had from elsewhere."""
    from fedpaq.problems.datasets import source as datasets

    def refuse(dataset, folder):
        raise datasets.DatasetError(f"cannot download {dataset.name}; {dataset.advice()}")

    monkeypatch.setattr(datasets, "download", refuse)
    monkeypatch.setattr(datasets, "default_cache", lambda: tmp_path / "no-cache")
    monkeypatch.delenv("FEDPAQ_DATA", raising=False)


def test_one_figure_leaves_everything_and_a_second_call_computes_nothing(small_paper, tmp_path, monkeypatch):
    result = CliRunner().invoke(app, ["reproduce", "small", "-o", str(tmp_path)], env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    assert len(list(tmp_path.glob("curves/small/*.json"))) == 3
    for accounting in ACCOUNTINGS:
        for kind in ("png", "pdf"):
            assert (tmp_path / f"small-{accounting}.{kind}").stat().st_size > 5_000
    assert json.loads((tmp_path / "verdicts.json").read_text()) == []  # the paper says nothing about it
    assert "report.html" in result.output
    assert max(len(line) for line in result.stdout.splitlines() if "report" not in line) <= 80

    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    monkeypatch.setattr("fedpaq.experiments.runner.run_curve", None)  # calling it would fail
    result = CliRunner().invoke(app, ["reproduce", "small", "-o", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_prices_have_a_folder_of_their_own_and_no_curve_is_run_for_them(small_paper, tmp_path, monkeypatch):
    words = ["reproduce", "small", "-o", str(tmp_path)]
    CliRunner().invoke(app, [*words, "--quiet"])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    monkeypatch.setattr("fedpaq.experiments.runner.run_curve", None)  # calling them would fail
    monkeypatch.setattr("fedpaq.experiments.runner.extended", None)
    result = CliRunner().invoke(app, [*words, "--round-seconds", "5"], env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    assert "priced: 1,000 gradient times per round" in result.stdout.replace("\n", " ")
    assert {path: path.read_bytes() for path in before} == before
    new = [path for path in tmp_path.rglob("*") if path.is_file() and path not in before]
    assert {path.parent for path in new} == {tmp_path / "priced"}


def test_only_missing_data_leaves_no_folder_of_prices(small_paper, no_data, tmp_path):
    result = CliRunner().invoke(app, ["reproduce", "lacking", "-o", str(tmp_path / "new"), "--round-seconds", "5"])
    assert result.exit_code == 2 and not (tmp_path / "new").exists()


def test_missing_data_is_named_and_the_other_figures_still_run(small_paper, no_data, tmp_path):
    result = CliRunner().invoke(app, ["reproduce", "all", "-o", str(tmp_path)])
    assert result.exit_code == 2
    assert "lacking was not run" in result.stderr
    assert "cifar-100-binary.tar.gz" in result.stderr and "FEDPAQ_DATA" in result.stderr
    assert (tmp_path / "small-payload.png").exists() and (tmp_path / "report.html").exists()


def test_only_missing_data_leaves_no_report(small_paper, no_data, tmp_path):
    result = CliRunner().invoke(app, ["reproduce", "lacking", "-o", str(tmp_path)])
    assert result.exit_code == 2 and "lacking was not run" in result.stderr
    assert not (tmp_path / "report.html").exists()


def test_an_unknown_figure_is_refused_before_anything_is_written(tmp_path):
    result = CliRunner().invoke(app, ["reproduce", "mnits", "-o", str(tmp_path / "new")])
    assert "did you mean 'mnist'" in str(result.exception)
    assert not (tmp_path / "new").exists()


@pytest.fixture
def small_rates(small_paper):
    """A sixth figure of one plot that runs in moments, beside the small paper."""
    curves = {
        "s = 1": PaperSetting(1, 5, 50),
        "s = 5": PaperSetting(5, 5, 50),
        "s = 10": PaperSetting(10, 5, 50),
        "no quantization": PaperSetting(None, 5, 50),
    }
    for size, label in zip((24, 26, 28, 30), LABELS, strict=True):
        curves[label] = PaperSetting(None, 5, 50, f"rotated:payload_bytes={size}")
    panel = figures.Panel("rates", "Small", "fixed", curves)
    name = "rates-fashion"  # so that there are claims about it
    PLOTS[name] = figures.Figure(name, "Small", "Nowhere", SMALL.problem, 100.0, (panel,), beside="small")


def test_the_sixth_figure_has_curves_verdicts_and_a_picture_of_its_own(small_rates, tmp_path):
    result = CliRunner().invoke(app, ["reproduce", "small", "-o", str(tmp_path), "--quiet"])
    assert result.exit_code == 0, result.output
    paper = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.suffix != ".html" and path.is_file()}
    result = CliRunner().invoke(app, ["reproduce", "rates", "-o", str(tmp_path), "--json"])
    assert result.exit_code == 0, result.output
    assert all(path.read_bytes() == content for path, content in paper.items())
    assert len(list(tmp_path.glob("curves/small/*.json"))) == 3 + 8  # s = 1 and none are tuned otherwise
    assert (tmp_path / "rates.png").stat().st_size > 5_000 and (tmp_path / "rates.pdf").exists()
    verdicts = json.loads((tmp_path / "rates-verdicts.json").read_text())
    assert json.loads(result.stdout)["verdicts"] == verdicts
    assert [list(entry["judged"]) for entry in verdicts] == 3 * [["payload"]]
    assert "rotated-payload_bytes-24-r5-tau50" in (tmp_path / "report.html").read_text(encoding="utf-8")

    result = CliRunner().invoke(app, ["reproduce", "rates", "-o", str(tmp_path)], env={"COLUMNS": "90"})
    assert "Rotated, judged" in result.stdout and "paper's claims" not in result.stdout
    assert "rates-fashion" in result.stdout and "float32" in result.stdout


def test_an_interrupt_is_told_with_the_way_to_go_on(small_paper, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("fedpaq.experiments.run_figure", interrupted)
    ended = CliRunner().invoke(app, ["reproduce", "small", "-o", str(tmp_path)])
    assert ended.exit_code == 130
    assert ended.stderr.endswith("fedpaq: interrupted; the same command goes on with what is missing\n")
