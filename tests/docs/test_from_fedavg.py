"""The page "From FedAvg to FedPAQ": its diff applies to an app in the layout of Flower's quickstart, and that runs."""

from __future__ import annotations

import importlib
import re
import shutil
import sys

import pytest
import torch
from flwr.app import Context, RecordDict

from fedpaq.flower import exchange, roster
from flower.in_process_grid import InProcessGrid
from repository import ROOT, TESTS

pytestmark = pytest.mark.flower
SETTINGS = {"num-server-rounds": 5, "fraction-evaluate": 1.0, "local-epochs": 1, "learning-rate": 0.1, "batch-size": 20}


def apply(page, folder):
    """Apply the page's hunks: what a hunk removes must stand in the file exactly once."""
    changed = []
    for block in re.findall(r"^```diff\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
        head, *hunks = block.split("@@\n")
        path = folder / head.removeprefix("--- ").strip()
        text = path.read_text()
        for hunk in hunks:
            lines = hunk.splitlines(keepends=True)
            old, new = ("".join(line[1:] for line in lines if line[0] != sign) for sign in "+-")
            assert text.count(old) == 1, f"{path.name} does not hold:\n{old}"
            text = text.replace(old, new)
            changed += [line for line in lines if line[0] in "+-"]
        path.write_text(text)
    return changed


@pytest.fixture
def app(tmp_path, monkeypatch):
    folder = tmp_path / "quickstart"
    shutil.copytree(TESTS / "flower" / "apps" / "quickstart", folder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(exchange, "POLL_SECONDS", 0.002)
    monkeypatch.setattr(roster, "POLL_SECONDS", 0.002)
    yield folder
    for name in [name for name in sys.modules if name.split(".")[0] == "quickstart"]:
        del sys.modules[name]


def run(folder, tmp_path):
    """Run the app on four clients and return its final model's accuracy."""
    torch.manual_seed(0)
    client, server, task = (
        importlib.import_module(f"quickstart.{name}") for name in ("client_app", "server_app", "task")
    )
    grid = InProcessGrid(client.app, 4, run_config=SETTINGS)
    server.app(grid, Context(1, 1, {}, RecordDict(), SETTINGS))
    net = task.Net()
    net.load_state_dict(torch.load(tmp_path / "final_model.pt"))
    _, accuracy = task.test(net, task.load_data(3, 4, 20)[1], torch.device("cpu"))
    sent = [message for message in grid.sent if message.metadata.message_type == "train"]
    return accuracy, any("fedpaq" in message.content for message in sent)


def test_the_app_as_it_is_runs_with_fedavg(app, tmp_path):
    assert run(app, tmp_path) == (pytest.approx(1.0, abs=0.2), False)


def test_the_diff_of_the_page_makes_it_run_with_fedpaq(app, tmp_path):
    changed = apply((ROOT / "docs" / "from-fedavg.md").read_text(), app)
    code = [line for line in changed if line[0] == "+" and "dependencies" not in line]
    assert len(code) == 4  # as the README says
    assert run(app, tmp_path) == (pytest.approx(1.0, abs=0.2), True)
