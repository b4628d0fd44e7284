"""ModelFile: a saved model loads back in the two lines that the documentation shows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord
from torch import nn

from fedpaq.flower import FedPAQ
from fedpaq.flower.layout import FLOATS, WHOLES
from fedpaq.flower.model_file import save_model
from flower.flower_apps import quantizing

pytestmark = pytest.mark.flower


def make_net():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))


def load_npz(path):
    return {name: torch.from_numpy(values) for name, values in np.load(path).items()}


def load_safetensors(path):
    return pytest.importorskip("safetensors.torch", reason="needs safetensors").load_file(path)


@pytest.mark.parametrize(("name", "load"), [("model.npz", load_npz), ("model.safetensors", load_safetensors)])
def test_the_final_model_loads_back(tmp_path, name, load):
    path, net = tmp_path / name, make_net()
    strategy = FedPAQ(clients_per_round=2, fraction_evaluate=0.0, save=path)
    result = strategy.start(quantizing(2), ArrayRecord(net.state_dict()), num_rounds=2)
    net.load_state_dict(load(path))
    expected = result.arrays.to_torch_state_dict()
    assert net.state_dict().keys() == expected.keys()
    for key, values in net.state_dict().items():
        assert torch.equal(values, expected[key])


@pytest.mark.parametrize("ending", ["npz", "safetensors"])
def test_every_kind_of_array_and_any_name_can_be_saved(tmp_path, ending):
    arrays = {f"{dtype}.weight": np.ones((2, 3), dtype) for dtype in (*FLOATS, *WHOLES)}
    arrays |= {"file": np.float32([1, 2]), "empty": np.zeros((0, 2), np.float32), "scalar": np.array(7)}
    path = tmp_path / f"model.{ending}"
    save_model(path, arrays)
    load = np.load if ending == "npz" else pytest.importorskip("safetensors.numpy").load_file
    found = dict(load(path).items())
    assert found.keys() == arrays.keys()
    for name, values in arrays.items():
        np.testing.assert_array_equal(found[name], values, strict=True)
