"""The scripts: what they would write, checked without touching the repository; and the examples' own parts."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import json
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedpaq.experiments import FIGURES, PLOTS, Output, judge
from fedpaq.experiments.curve import curve_settings
from fedpaq.problems import datasets
from repository import ROOT
from small_figure import MNIST, planted


def loaded(folder, name):
    """A script as a module of its own."""
    spec = importlib.util.spec_from_file_location(f"script_{name}", ROOT / folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def audit():
    return loaded("scripts", "audit")


def test_every_pinned_package_has_a_name_and_a_version(audit):
    found = audit.pinned()
    assert {"numpy", "numba", "torch"} <= set(found)
    assert all(version[0].isdigit() for version in found.values())
    lines = [line for line in audit.CONSTRAINTS.read_text().splitlines() if not line.startswith("#")]
    assert len(lines) == len(found)


def test_a_version_that_is_not_the_pinned_one_is_named_and_absent_packages_are_not(audit, tmp_path, monkeypatch):
    constraints = tmp_path / "constraints.txt"
    torch = importlib.metadata.version("torch").partition("+")[0]  # 2.13.0+cpu is a build of 2.13.0
    constraints.write_text(f"# why\ntorch=={torch}\nnumpy=={np.__version__}\nrich==0.0.1\nno-such-package==1.0\n")
    monkeypatch.setattr(audit, "CONSTRAINTS", constraints)
    assert list(audit.pinned()) == ["torch", "numpy", "rich", "no-such-package"]
    (different,) = audit.differences()
    assert different.startswith("rich ") and different.endswith("(pinned: 0.0.1)")


@pytest.mark.parametrize(
    ("conflict", "different", "known", "strict", "code"),
    [
        (None, [], [], False, 0),
        (None, ["rich 1 (pinned: 2)"], [], False, 0),
        (None, ["rich 1 (pinned: 2)"], [], True, 1),
        ("a needs b", [], [], False, 1),
        (None, [], ["rich 1: CVE"], False, 1),
    ],
)
def test_the_audit_fails_for_what_is_wrong_and_says_it(
    audit, monkeypatch, capsys, conflict, different, known, strict, code
):
    monkeypatch.setattr(audit, "conflicts", lambda: conflict)
    monkeypatch.setattr(audit, "differences", lambda: different)
    monkeypatch.setattr(audit, "vulnerabilities", lambda: (known, "; ".join(known) or "none"))
    monkeypatch.setattr(sys, "argv", ["audit.py", *(["--strict"] if strict else [])])
    with pytest.raises(SystemExit) as end:
        audit.main()
    assert end.value.code == code
    told = capsys.readouterr().out
    assert len(told.splitlines()) == 3
    assert all(text in told for text in [*different, *known, conflict or "no conflicts"])


def full_mnist(path):
    """A small archive of the full MNIST's form; pixel [0, 0] numbers the images."""
    parts = {}
    for part, count in (("train", 40), ("test", 20)):
        images = np.zeros((count, 28, 28), np.uint8)
        images[:, 0, 0] = np.arange(count)
        parts |= {f"x_{part}": images, f"y_{part}": (np.arange(count) % 10).astype(np.uint8)}
    np.savez(path, **parts)


def test_the_bundle_keeps_the_two_digits_in_order_and_the_same_bytes_each_time(tmp_path, monkeypatch, capsys):
    script = loaded("scripts", "bundle_mnist")
    full_mnist(tmp_path / "mnist.npz")
    written = []
    for name in ("one.npz", "two.npz"):
        monkeypatch.setattr(script, "TARGET", tmp_path / name)
        script.main(str(tmp_path / "mnist.npz"))
        written.append((tmp_path / name).read_bytes())
    assert written[0] == written[1] and f"{len(written[0])} bytes" in capsys.readouterr().out
    with np.load(tmp_path / "one.npz") as found:
        assert found["y_train"].tolist() == [0, 8] * 4 and found["y_test"].tolist() == [0, 8] * 2
        assert found["x_train"][:, 0, 0].tolist() == [0, 8, 10, 18, 20, 28, 30, 38]
    with zipfile.ZipFile(tmp_path / "one.npz") as archive:
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_the_bundle_that_ships_has_the_form_the_script_writes():
    path = Path(datasets.__file__).parent / "bundled" / "mnist_0_8.npz"
    with np.load(path) as found:
        assert sorted(found) == ["x_test", "x_train", "y_test", "y_train"]
        assert set(np.unique(found["y_train"])) == {0, 8}
        assert found["x_train"].dtype == np.uint8 and found["x_train"].shape[1:] == (28, 28)
        assert len(found["x_train"]) == len(found["y_train"]) == 5923 + 5851  # MNIST's zeros and eights


@pytest.fixture
def docs_script():
    return loaded("scripts", "reproduce_docs")


def page_of(*names):
    return "".join(f"# {name}\n<!-- begin {name} -->\nold\n<!-- end {name} -->\nkept {name}\n" for name in names)


def test_only_what_stands_between_markers_is_replaced_and_twice_is_once(docs_script):
    page = page_of("score", "mnist")
    filled = docs_script.filled(page, {"score": "| new \\1 |", "mnist": "table"})
    assert "old" not in filled and "| new \\1 |" in filled and "kept mnist" in filled
    assert docs_script.filled(filled, {"score": "| new \\1 |", "mnist": "table"}) == filled


def test_a_figure_that_was_not_run_says_how_to_run_it(docs_script):
    filled = docs_script.filled(page_of("score", *FIGURES), {"score": "x"})
    for name in FIGURES:
        assert f"Not run yet: `fedpaq reproduce {name}`." in filled


def test_publishing_replaces_the_curves_of_finished_figures_then_draws_and_judges_them(
    docs_script, tmp_path, monkeypatch
):
    source, target = Output(tmp_path / "reproduction"), Output(tmp_path / "docs" / "paper")
    for wanted in curve_settings(MNIST):
        source.save(MNIST, dataclasses.replace(planted(wanted.setting, 0.9), settings=wanted))
    (source.folder / "report.html").write_text("large")
    older, beside = curve_settings(MNIST)[0], curve_settings(PLOTS["rates-mnist"])[0]
    assert older.setting == beside.setting
    for wanted in curve_settings(MNIST):
        replaced = dataclasses.replace(wanted, version="0.0.1")
        target.save(MNIST, dataclasses.replace(planted(wanted.setting, 0.9), settings=replaced))
    target.save(MNIST, dataclasses.replace(planted(beside.setting, 0.9), settings=beside))
    monkeypatch.setattr(docs_script, "PUBLISHED", target.folder)
    docs_script.publish(source.folder)
    found = {str(path.relative_to(target.folder)) for path in target.folder.rglob("*") if path.is_file()}
    new = {f"curves/mnist/{path.name}" for path in source.folder.glob("curves/mnist/*")}
    pictures = {f"mnist-{count}.png" for count in ("payload", "elias", "fixed-width")}
    assert found == {*new, f"curves/mnist/{target.path(MNIST, beside).name}", *pictures, "verdicts.json"}
    assert json.loads((target.folder / "verdicts.json").read_text()) == judge(MNIST, target.curves(MNIST))


@pytest.fixture
def performance():
    return loaded("scripts", "performance_page")


def test_a_table_is_markdown_with_numbers_to_the_right(performance):
    assert performance.table(("a", "b"), [(1, 2), ("x", 3.5)]).splitlines() == [
        "| a | b |",
        "| --- | ---: |",
        "| 1 | 2 |",
        "| x | 3.5 |",
    ]


@pytest.mark.parametrize(("value", "text"), [(0.123, "0.12"), (9.94, "9.9"), (10, "10"), (1234.5, "1,234")])
def test_ratios_have_two_digits_or_are_whole(performance, value, text):
    assert performance.digits(value) == text


@pytest.mark.parametrize(("value", "text"), [(0.99996, "1 s"), (0.00099996, "1 ms"), (9.9996e-7, "1 µs")])
def test_a_duration_just_below_a_unit_is_one_of_it(performance, value, text):
    assert performance.seconds(value) == text


@pytest.mark.parametrize(("value", "text"), [(999_999, "1 MB"), (999.9, "1 kB"), (999_999_999, "1 GB")])
def test_a_size_just_below_a_unit_is_one_of_it(performance, value, text):
    assert performance.size(value) == text


def test_the_page_leaves_out_what_was_not_measured(performance, tmp_path, monkeypatch):
    monkeypatch.setattr(performance, "RESULTS", tmp_path)
    assert performance.page().split() == performance.INTRODUCTION.split()
    machine = {"processor": "P", "cores": 2, "python": "3", "versions": {"numpy": "2", "fedpaq": "0"}}
    contenders = {"sweep, s=1": {"median_seconds": 0.5, "over_numpy": 0.5}}
    results = {"machine": machine, "runs": 40, "contenders": contenders}
    (tmp_path / "sweep.json").write_text(json.dumps(results))
    page = performance.page()
    assert "## A sweep as one batch" in page and "*P, 2 cores; Python 3, numpy 2.*" in page
    assert "| sweep, s=1 | 500 ms | 0.50 |" in page
    assert "| at most 0.4 x 40 NumPy runs | 0.50 | **no** |" in page
