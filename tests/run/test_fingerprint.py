"""Fingerprint: equal for the same run however it was made, different wherever its bits could differ."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn

import fedpaq
from fedpaq.errors import CheckpointError
from fedpaq.problems import Partition, Problem, iid, synthetic_quadratic
from fedpaq.quantizers import Identity, LowPrecision
from fedpaq.run.fingerprint import describe, describe_config, describe_problem, fingerprint
from fedpaq.run.saving import differing

INPUTS = np.arange(24, dtype=np.float32).reshape(8, 3) / 24
TARGETS = np.array([0, 1, 0, 1, 1, 0, 1, 0])
CONFIG = fedpaq.FedPAQConfig(clients_per_round=2, local_steps=2, total_steps=4, batch_size=2, step_size=0.05)


def network(between=None, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, 4), nn.ReLU() if between is None else between, nn.Linear(4, 2))


def make(**changes):
    values = {
        "model": network(),
        "loss": nn.functional.cross_entropy,
        "inputs": INPUTS,
        "targets": TARGETS,
        "partition": iid(8, 4, seed=0),
    }
    return Problem(**{**values, **changes})


def keys_that_differ(one, other):
    """What differs besides the probe, which feels most changes of data and layers too."""
    lines = differing(describe_problem(one), describe_problem(other))
    return {line.split("=")[0] for line in lines} - {"probe"}


class Halved(nn.Linear):
    def forward(self, x):
        return super().forward(x) / 2

    def extra_repr(self):
        return "alike"


class Whole(nn.Linear):
    def extra_repr(self):
        return "alike"


Halved.__name__ = Whole.__name__


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"loss": nn.CrossEntropyLoss()}, {"loss": nn.CrossEntropyLoss(label_smoothing=0.3)}),
        (
            {"loss": lambda o, t: nn.functional.cross_entropy(o, t)},
            {"loss": lambda o, t: 2 * nn.functional.cross_entropy(o, t)},
        ),
        ({"model": Whole(3, 2)}, {"model": Halved(3, 2)}),
    ],
)
def test_models_and_losses_of_one_name_are_told_apart_by_what_they_compute(one, other):
    described = [describe_problem(make(**changes)) for changes in (one, other)]
    assert described[0]["model"] == described[1]["model"] and described[0]["loss"] == described[1]["loss"]
    assert described[0]["probe"] != described[1]["probe"]


def test_the_weights_of_a_loss_are_part_of_it():
    even, uneven = (make(loss=nn.CrossEntropyLoss(weight=torch.tensor(w))) for w in ([1.0, 1.0], [1.0, 5.0]))
    assert "data_sha256" in keys_that_differ(even, uneven)


def test_a_probe_repeats_with_dropout_and_leaves_the_generator_alone():
    problem = make(model=network(nn.Dropout(0.5)))
    before = torch.get_rng_state()
    assert describe_problem(problem) == describe_problem(problem)
    assert torch.equal(before, torch.get_rng_state())


def test_the_same_problem_made_twice_has_one_fingerprint():
    assert describe_problem(make()) == describe_problem(make())


def test_how_arrays_lie_in_memory_does_not_matter():
    strided = np.repeat(INPUTS, 2, axis=1)[:, ::2]
    fortran = np.asfortranarray(INPUTS)
    doubled = INPUTS.astype(np.float64)
    for inputs in (strided, fortran, doubled, torch.from_numpy(INPUTS), INPUTS.tolist()):
        assert describe_problem(make(inputs=inputs)) == describe_problem(make())


def moved_by_one_bit(values):
    changed = values.copy()
    changed.flat[-1] = np.nextafter(changed.flat[-1], np.float32(9), dtype=np.float32)
    return changed


DATA = {
    "one bit of an input": {"inputs": moved_by_one_bit(INPUTS)},
    "one target": {"targets": np.where(np.arange(8) == 5, 1, TARGETS)},
    "two samples of two clients exchanged": {"partition": Partition.from_lists([[0, 1], [2, 3], [4, 5], [6, 7]])},
    "the initial weights": {"model": network(seed=1)},
}


@pytest.mark.parametrize("changes", DATA.values(), ids=DATA.keys())
def test_whatever_training_starts_from_is_hashed(changes):
    assert keys_that_differ(make(**changes), make()) == {"data_sha256"}


def test_the_same_samples_cut_into_other_clients_are_another_problem():
    order = iid(8, 4, seed=0).indices
    cut = Partition(order, np.array([0, 1, 4, 6, 8]))
    assert keys_that_differ(make(partition=cut), make()) == {"data_sha256"}


def test_inputs_of_another_shape_are_another_problem_although_their_bytes_are_the_same():
    flat = nn.Sequential(nn.Flatten(), *network())
    wide, tall = (make(model=flat, inputs=INPUTS.reshape(8, *shape)) for shape in ((3, 1), (1, 3)))
    assert keys_that_differ(wide, tall) == {"data_sha256"}


LAYERS = {
    "another activation": (network(nn.Tanh()), network()),
    "another slope": (network(nn.LeakyReLU(0.1)), network(nn.LeakyReLU(0.2))),
    "another dropout": (network(nn.Dropout(0.1)), network(nn.Dropout(0.5))),
}


@pytest.mark.parametrize(("one", "other"), LAYERS.values(), ids=LAYERS.keys())
def test_layers_without_weights_are_part_of_the_model(one, other):
    assert keys_that_differ(make(model=one), make(model=other)) == {"model"}


def test_frozen_parameters_are_part_of_the_model():
    flat, steep = (synthetic_quadratic(num_clients=4, smoothness=L) for L in (4.0, 8.0))
    assert np.array_equal(flat.initial_params, steep.initial_params)
    assert torch.equal(flat.inputs, steep.inputs)
    assert keys_that_differ(flat, steep) == {"data_sha256"}


def test_buffers_are_part_of_the_model():
    normal, shifted = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    shifted.running_mean += 1
    normal.eval(), shifted.eval()
    ends = [nn.Sequential(norm, nn.Linear(3, 2)) for norm in (normal, shifted)]
    ends[1].load_state_dict({**ends[0].state_dict(), "0.running_mean": shifted.running_mean})
    assert keys_that_differ(*(make(model=model) for model in ends)) == {"data_sha256"}


def test_constants_of_any_type_can_be_hashed():
    class Scaled(nn.Module):
        def __init__(self, kind):
            super().__init__()
            self.layer = network(seed=3)
            self.register_buffer("scale", torch.tensor(3.0, dtype=kind))
            self.register_buffer("mask", torch.ones(3, 4, dtype=torch.bool).T)

        def forward(self, inputs):
            return self.layer(inputs) * self.scale.float()

    half, brain = (make(model=Scaled(kind)) for kind in (torch.float16, torch.bfloat16))
    assert keys_that_differ(half, brain) == {"data_sha256"}


def test_a_checkpoint_of_another_curvature_is_refused(tmp_path):
    flat, steep = (synthetic_quadratic(num_clients=4, smoothness=L) for L in (4.0, 8.0))
    fedpaq.train(flat, CONFIG, checkpoint=tmp_path / "run.ckpt")
    before = (tmp_path / "run.ckpt").read_bytes()
    with pytest.raises(CheckpointError, match=r"is of another run: problem\.data_sha256="):
        fedpaq.train(steep, CONFIG, checkpoint=tmp_path / "run.ckpt")
    assert (tmp_path / "run.ckpt").read_bytes() == before


def test_names_sizes_and_losses_are_told_apart_by_themselves():
    assert keys_that_differ(make(name="a"), make(name="b")) == {"name"}
    assert keys_that_differ(make(regularization=0.1), make()) == {"regularization"}
    assert keys_that_differ(make(loss=nn.CrossEntropyLoss()), make()) == {"loss"}
    assert keys_that_differ(make(partition=iid(8, 2)), make()) == {"num_clients", "data_sha256"}


def test_a_schedule_is_its_values_and_not_its_code():
    def quarter(round):
        return 0.25 / (1 + round)

    written_differently = replace(CONFIG, step_size=lambda k: 0.5 / (2 * k + 2))
    assert describe_config(replace(CONFIG, step_size=quarter)) == describe_config(written_differently)
    late = replace(CONFIG, step_size=lambda k: 0.25 if k == 0 else 0.126)
    assert describe_config(late) != describe_config(written_differently)
    assert describe_config(CONFIG)["step_size"] == 0.05


def test_a_schedule_that_equals_a_constant_only_here_is_compared_over_all_rounds():
    drop_at_the_end = replace(CONFIG, total_steps=40, step_size=lambda k: 0.1 if k < 19 else 0.05)
    never_drops = replace(drop_at_the_end, step_size=lambda k: 0.1)
    assert describe_config(drop_at_the_end) != describe_config(never_drops)


@dataclass(frozen=True)
class Clipping:
    """A setting with fields of many kinds."""

    limit: float = 1.5
    on: bool = True
    note: str | None = None
    inner: tuple[int, ...] = (1, 2)
    name: str = "clipping"


@pytest.mark.parametrize("value", [None, True, 3, 0.5, "text"])
def test_plain_settings_are_themselves(value):
    assert describe(value) is value


def test_objects_are_told_by_type_name_and_plain_fields():
    assert describe(Clipping()) == {"type": "Clipping", "name": "clipping", "limit": 1.5, "on": True, "note": None}
    assert describe(LowPrecision(3))["levels"] == 3
    assert describe(LowPrecision(3)) != describe(LowPrecision(4)) != describe(Identity())
    assert describe(Clipping)["type"] == "type"  # a class is not its instance


def test_a_fingerprint_is_json_of_problem_configs_and_settings():
    problem = synthetic_quadratic(num_clients=3, dimension=4)
    whole = fingerprint(problem, [CONFIG, CONFIG], quantizer=LowPrecision(2), evaluate_every=1)
    assert json.loads(json.dumps(whole, allow_nan=False)) == whole
    assert list(whole) == ["problem", "configs", "quantizer", "evaluate_every"]
    assert whole["configs"] == [CONFIG.to_dict()] * 2 and whole["evaluate_every"] == 1


def test_numbers_of_numpy_are_known_by_their_value():
    assert describe(np.int64(1)) == describe(1) != describe(np.int64(2))
    slow = [fedpaq.CostModel(ratio=1.0, slow_share=0.2, slow_factor=np.int64(factor)) for factor in (3, 9)]
    assert describe(slow[0]) != describe(slow[1]) and describe(slow[0])["slow_factor"] == 3


def test_a_loss_of_shape_one_can_be_saved(tmp_path, config):
    inputs = torch.randn(40, 3)
    problem = fedpaq.Problem(
        model=torch.nn.Linear(3, 1), loss=lambda outputs, targets: ((outputs - targets) ** 2).mean(0), inputs=inputs,
        targets=inputs[:, :1], partition=fedpaq.problems.iid(40, 8),
    )  # fmt: skip
    saved = fedpaq.train(problem, config, checkpoint=tmp_path / "run")
    assert np.array_equal(saved.params, fedpaq.train(problem, config).params)
