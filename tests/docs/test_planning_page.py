"""docs/planning.md: what it says about the planner's quality is what the benchmark stored."""

from __future__ import annotations

import json

import pytest

from repository import ROOT

ROWS = json.loads((ROOT / "benchmarks" / "results" / "planner.json").read_text())["rows"]
PAGE = (ROOT / "docs" / "planning.md").read_text()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['target_loss']}-{row['ratio']}")
def test_the_pick_is_near_the_best_of_the_grid_at_a_fifth_of_its_cost(row):
    assert row["over_best"] <= 1.15
    assert row["share_of_steps"] <= 0.2
    assert f"| {row['target_loss']} | {row['ratio']:,} | {row['grid_best']} | {row['pick']} |" in PAGE


def test_the_pick_follows_the_network():
    """Dearer uploads, more local steps."""
    for target in {row["target_loss"] for row in ROWS}:
        picks = {row["ratio"]: row["pick"] for row in ROWS if row["target_loss"] == target}
        assert set(picks) == {1, 100, 10_000}
        local_steps = [int(picks[ratio].split(",")[0].removeprefix("tau=")) for ratio in sorted(picks)]
        assert local_steps == sorted(local_steps)
        assert local_steps[0] < local_steps[-1]
