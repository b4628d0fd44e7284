"""The tables of docs/quantizers.md and docs/theory.md are what their script writes from the stored results."""

from __future__ import annotations

import importlib

import pytest

from repository import ROOT


@pytest.fixture(scope="module")
def script():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "scripts"))
        yield importlib.import_module("quantizer_tables")


def test_the_tables_are_up_to_date(script):
    for page, text in script.pages().items():
        assert (ROOT / "docs" / page).read_text() == text, "run: python scripts/quantizer_tables.py"


def test_a_page_without_a_place_for_a_table_is_refused(script):
    with pytest.raises(SystemExit, match="no place"):
        script.filled("nothing here", "bias", "| |")
