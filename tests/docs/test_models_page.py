"""docs/models.md is what its script writes from the trials in docs/figures/models."""

from __future__ import annotations

import importlib
import json

import pytest

from fedpaq.experiments.models import TASKS
from repository import ROOT

DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def script():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "scripts"))
        yield importlib.import_module("models_docs")


def test_the_page_and_the_summary_are_up_to_date(script):
    found = script.summaries()
    assert {each["name"] for each in found} >= {"resnet-iid", "transformer"}
    assert json.loads((DOCS / "figures" / "models-verdicts.json").read_text()) == found
    page = (DOCS / "models.md").read_text()
    assert script.filled(page, script.sections(found)) == page, "run: python scripts/models_docs.py"
    for each in found:
        assert (DOCS / "figures" / f"models-{each['name']}.png").exists()


def test_every_task_has_its_place_and_one_that_was_not_run_says_so(script):
    sections = script.sections([])
    assert set(sections) == set(TASKS) and all("has not been run yet" in text for text in sections.values())
    with pytest.raises(SystemExit, match="no place for resnet-iid"):
        script.filled("nothing", sections)


def test_a_run_that_diverged_is_named(script):
    row = {"arm": "s = 1", "step_size": 0.1, "bytes_per_upload": 5, "times_fewer_up": 2.0, "measure": None}
    row |= {"times_fewer_both_ways": 1.0, "behind_float32": None, "training_loss": None}
    assert script.cells(row)[-3:] == ("diverged",) * 3
    failed = {"sentence": "It learns.", "verdict": "does not hold", "numbers": []}
    assert script.claim(failed) == ("It learns.", "✗ does not hold", "diverged")
