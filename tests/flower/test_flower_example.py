"""The example app, in this process."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, RecordDict

import fedpaq
from fedpaq.quantizers import QUANTIZERS, parse
from flower.deployments import EXAMPLE
from flower.in_process_grid import InProcessGrid

pytestmark = pytest.mark.flower


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLE))
    names = ("task", "client_app", "server_app")
    yield {name: importlib.import_module(f"flower_mnist.{name}") for name in names}
    for name in [name for name in sys.modules if name.split(".")[0] == "flower_mnist"]:
        del sys.modules[name]


@pytest.mark.parametrize("text", ["low-precision:1", "rotated:payload_bytes=40", "random-sparse:0.1", "none"])
def test_the_example_leaves_what_the_simulator_would_with_any_quantizer(text, example, tmp_path, capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLE.parent / "random-sparse"))
    monkeypatch.setitem(QUANTIZERS, "random-sparse", importlib.import_module("random_sparse").RandomSparse)
    run_config = {"num-clients": 3, "clients-per-round": 2, "num-rounds": 2, "seed": 5, "local-steps": 2}
    run_config |= {
        "batch-size": 10,
        "step-size": 0.2,
        "deadline": 60.0,
        "checkpoint": "",
        "result": "",
        "log": "",
        "save": "",
    }
    run_config |= {"quantizer": text, "downlink": "dense"}
    result = tmp_path / "result.npz"
    run_config["result"] = str(result)
    grid = InProcessGrid(example["client_app"].app, 3, run_config=run_config)
    example["server_app"].app(grid, Context(1, 1, {}, RecordDict(), run_config))
    problem, config = example["task"].load_problem(3, 5), example["task"].training(run_config)
    expected = fedpaq.train(problem, config, quantizer=parse(text), executor="sequential")
    with np.load(result) as found:
        np.testing.assert_array_equal(found["params"], expected.params)
        assert [entry["counted"] for entry in json.loads(str(found["history"]))] != []
    assert f"loss={expected.final.loss:.4f} accuracy={expected.final.accuracy:.4f}" in capsys.readouterr().out
    assert any("fedpaq.model" in message.content for message in grid.sent) and Path(EXAMPLE, "pyproject.toml").exists()


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's own call
@pytest.mark.parametrize("folder", [EXAMPLE, EXAMPLE.parent / "flower-lora"], ids=lambda folder: folder.name)
def test_an_example_is_ready_for_the_hub(folder):
    from flwr.cli.config_utils import load_and_validate

    publish = importlib.import_module("flwr.cli.app_cmd.publish")  # the package has a function of this name
    config, warnings = load_and_validate(folder / "pyproject.toml", check_module=False)
    app = config["tool"]["flwr"]["app"]
    assert (app["publisher"], app["fab-format-version"], app["flwr-version-target"]) == ("fedpaq", 1, "1.41.0")
    assert not warnings
    publish._validate_app_name(folder.name, "Flower App directory name")
    publish._validate_description(config["project"]["description"])
    files = publish._collect_file_paths(folder)
    publish._validate_files(files)
    assert {"LICENSE", "README.md", "client_app.py", "server_app.py"} <= {path.name for path in files}
