"""Benchmarks never replace published results by nothing: without a GPU, or after an error."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from repository import ROOT


@pytest.fixture
def published(tmp_path):
    (tmp_path / "gpu.json").write_text("published")
    return tmp_path / "gpu.json"


def run(code, published):
    folders = [str(ROOT / "src"), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")]
    variables = {"OUT": str(published.parent), "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.pathsep.join(folders)}
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )


def test_without_a_gpu_the_benchmark_is_skipped_and_the_results_stay(published):
    done = run("import gpu; gpu.main()", published)
    assert done.returncode == 77 and "torch finds no CUDA device here" in done.stderr
    assert published.read_text() == "published" and done.stdout == ""


@pytest.mark.parametrize("section", ["{'part': {'error': 'RuntimeError: lost'}}", "1 / 0"])
def test_a_section_that_fails_ends_the_benchmark_with_an_error_and_the_results_stay(published, section):
    code = (
        "import gpu, torch\n"
        "torch.cuda.is_available = lambda: True\n"
        "torch.cuda.empty_cache = lambda: None\n"
        f"gpu.SECTIONS = {{'imports': lambda: {section}, 'checks': lambda: {{'equal': True}}}}\n"
        "gpu.main()\n"
    )
    done = run(code, published)
    assert done.returncode == 1 and "gpu.json is left as it is: imports failed" in done.stderr
    assert published.read_text() == "published" and "== checks" in done.stdout


def test_make_bench_says_what_was_skipped_and_stops_at_an_error(tmp_path):
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "Makefile").write_text((ROOT / "Makefile").read_text())
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).touch()
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / ".venv" / ".ready").touch()
    for name, code in (("a", 0), ("b", 77), ("c", 0), ("d", 1), ("e", 0)):
        (tmp_path / "benchmarks" / f"{name}.py").write_text(f"raise SystemExit({code})\n")
    done = subprocess.run(
        ["make", "--no-print-directory", "bench"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stdout.splitlines() == [
        "== benchmarks/a.py",
        "== benchmarks/b.py",
        "== benchmarks/b.py: SKIPPED",
        "== benchmarks/c.py",
        "== benchmarks/d.py",
    ]
