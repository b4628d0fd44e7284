"""Corpus: windows of real files, the last of each kept for the test."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import numpy as np
import pytest

from fedpaq.errors import DatasetError
from fedpaq.experiments.models import corpus


def test_windows_are_bytes_of_the_longest_files_in_order():
    found = corpus.library(64, clients=3)
    files = Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")
    texts = [path.read_bytes()[: corpus.MOST_BYTES] for path in files if not corpus.LEFT_OUT & set(path.parts[-3:])]
    first = bytes(found.windows[0].astype(np.uint8))
    assert any(text.startswith(first) for text in texts)
    second = bytes(found.windows[1].astype(np.uint8))
    assert first[-1] == second[0]  # the byte that is predicted last is the first of the next window
    assert len(found.sizes) == 3 and found.num_training == sum(found.sizes)
    held_out = len(found.windows) - found.num_training
    assert 0.05 < held_out / len(found.windows) < 0.11
    assert found.windows.min() >= 0 and found.windows.max() <= 255


def test_the_name_tells_version_and_digest_and_two_readings_agree():
    first, second = corpus.library(64, clients=3), corpus.library(64, clients=3)
    assert first.name == second.name and "sha256" in first.name and "Python 3." in first.name
    assert np.array_equal(first.windows, second.windows)
    assert corpus.library(64, clients=4).name != first.name


def test_a_library_that_is_not_there_is_an_error(monkeypatch, tmp_path):
    (tmp_path / "one.py").write_text("x = 1\n" * 500)
    monkeypatch.setattr(corpus.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    with pytest.raises(DatasetError, match="no 3 files that are long enough"):
        corpus.library(64, clients=3)
