"""An ordinary PyTorch Flower app, laid out as in Flower's quickstart, with the two lines changed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from fedpaq.flower import FedPAQ, quantize_mod
from flower.in_process_grid import InProcessGrid

pytestmark = pytest.mark.flower
CLIENTS = 4


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # the nets are tiny
    yield
    torch.set_num_threads(before)


def make_net(batch_norm):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        norm = [nn.BatchNorm2d(6)] if batch_norm else []
        return nn.Sequential(nn.Conv2d(1, 6, 3), *norm, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(54, 3))


def load_data(partition_id):
    generator = torch.Generator().manual_seed(partition_id)
    labels = torch.randint(0, 3, (60,), generator=generator)
    images = 0.5 * torch.randn(60, 1, 8, 8, generator=generator)
    for label in range(3):  # a bright bar at a height that names the class
        images[labels == label, :, 2 * label + 1, :] += 1.5
    return images, labels


def make_client(batch_norm):
    app = ClientApp(mods=[quantize_mod(levels=4)])  # the first changed line

    @app.train()
    def train(msg, context):
        model = make_net(batch_norm)
        model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
        images, labels = load_data(context.node_config["partition-id"])
        optimizer = torch.optim.SGD(model.parameters(), lr=msg.content["config"]["lr"])
        model.train()
        for batch in torch.arange(60).split(20):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()
        metrics = MetricRecord({"train_loss": loss.item(), "num-examples": 60})
        content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
        return Message(content=content, reply_to=msg)

    @app.evaluate()
    def evaluate(msg, context):
        model = make_net(batch_norm)
        model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
        model.eval()
        images, labels = load_data(100 + context.node_config["partition-id"])
        with torch.no_grad():
            outputs = model(images)
        metrics = {
            "eval_loss": nn.functional.cross_entropy(outputs, labels).item(),
            "eval_acc": (outputs.argmax(1) == labels).float().mean().item(),
            "num-examples": 60,
        }
        return Message(content=RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)

    return app


@pytest.mark.parametrize("batch_norm", [False, True])
def test_the_pytorch_quickstart_learns_with_two_changed_lines(batch_norm):
    grid = InProcessGrid(make_client(batch_norm), CLIENTS)
    arrays = ArrayRecord(make_net(batch_norm).state_dict())
    strategy = FedPAQ(clients_per_round=CLIENTS, fraction_evaluate=1.0)  # the second
    result = strategy.start(grid=grid, initial_arrays=arrays, train_config=ConfigRecord({"lr": 0.1}), num_rounds=12)
    assert len(result.train_metrics_clientapp) == 12
    assert result.evaluate_metrics_clientapp[12]["eval_acc"] > 0.9  # chance: 1/3
    assert result.evaluate_metrics_clientapp[12]["eval_loss"] < 0.5
    final = result.arrays.to_torch_state_dict()
    make_net(batch_norm).load_state_dict(final)
    if batch_norm:
        assert final["1.num_batches_tracked"] == 36  # three steps a round
        assert (final["1.running_var"] > 0).all()
        assert not np.array_equal(final["1.running_mean"], torch.zeros(6))


def test_frozen_parts_of_a_model_cost_and_change_nothing():
    """Arrays a client does not move have zero updates: no bytes, no noise."""
    app = ClientApp(mods=[quantize_mod(levels=1)])

    @app.train()
    def train(msg, context):
        state = msg.content["arrays"].to_torch_state_dict()
        state["5.bias"] = state["5.bias"] + 1
        return Message(content=RecordDict({"arrays": ArrayRecord(state)}), reply_to=msg)

    before = make_net(True).state_dict()
    strategy = FedPAQ(clients_per_round=2, fraction_evaluate=0.0)
    result = strategy.start(InProcessGrid(app, 2), ArrayRecord(before), num_rounds=3)
    after = result.arrays.to_torch_state_dict()
    for name, values in before.items():
        assert torch.equal(after[name], values) == (name != "5.bias")
