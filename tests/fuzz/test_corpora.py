"""Every input the fuzzers kept, and every one that was a finding, is still treated well."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

CORPORA = Path(__file__).parent / "corpora"
TARGETS = {
    "checkpoint": "read_checkpoint",
    "config": "parse_config",
    "dataset": "read_dataset",
    "history": "read_history",
}


def test_every_target_has_a_corpus():
    assert sorted(folder.name for folder in CORPORA.iterdir()) == sorted(TARGETS)


@pytest.mark.parametrize("kind", TARGETS)
def test_the_inputs_of_a_corpus_are_read_or_refused(kind):
    check = importlib.import_module(f"tests.fuzz.{TARGETS[kind]}").check
    inputs = sorted((CORPORA / kind).iterdir())
    assert len(inputs) >= 3
    for path in inputs:
        check(path.read_bytes())
