"""The example of low-rank adapters, in this process: only the adapter travels, in few bytes, and it learns."""

from __future__ import annotations

import importlib
import re
import sys
import tomllib

import pytest
import torch
from flwr.app import Context, RecordDict

from flower.flower_apps import payload_of
from flower.in_process_grid import InProcessGrid
from repository import ROOT

pytestmark = pytest.mark.flower
EXAMPLE = ROOT / "examples" / "flower-lora"


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield {name: importlib.import_module(f"flower_lora.{name}") for name in ("task", "client_app", "server_app")}
    for name in [name for name in sys.modules if name.split(".")[0] == "flower_lora"]:
        del sys.modules[name]


def test_an_adapter_starts_as_the_frozen_layer_and_trains_alone(example):
    task = example["task"]
    layer = torch.nn.Linear(5, 3)
    inputs, before = torch.randn(7, 5), layer.weight.clone()
    lora = task.LoRA(layer, rank=2, seed=0)
    assert torch.equal(lora(inputs), layer(inputs))
    assert set(task.adapter(lora)) == {"down", "up"}
    task.fit(lora, inputs, torch.ones(7, 3), steps=3, batch_size=4, learning_rate=0.1, seed=0)
    assert torch.equal(layer.weight, before) and lora.up.abs().max() > 0
    assert torch.allclose(lora(inputs) - layer(inputs), inputs @ (lora.up @ lora.down).T, atol=1e-6)


def test_only_the_adapter_travels_and_the_network_learns(example, capsys):
    run_config = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    replies = []
    grid = InProcessGrid(example["client_app"].app, run_config["num-clients"], run_config=run_config)
    grid.meddle = lambda client, reply: replies.append(reply) or reply
    example["server_app"].app(grid, Context(1, 1, {}, RecordDict(), run_config))
    payloads = [len(payload) for payload in map(payload_of, replies) if payload is not None]
    down = [len(sent.content["fedpaq.model"]["fedpaq.packed"]) for sent in grid.sent if "fedpaq.model" in sent.content]
    printed = capsys.readouterr().out
    trained, whole = (int(number.replace(",", "")) for number in re.findall(r"[\d,]{3,}", printed)[:2])
    assert len(payloads) == run_config["num-rounds"] * run_config["clients-per-round"]
    assert 10 * trained < whole and max(down) <= 4 * trained + 64 and max(payloads) < 0.1 * 4 * trained
    before, after = (float(number) for number in re.findall(r"([\d.]+)%", printed)[-2:])
    assert before < 75 and after > 93
